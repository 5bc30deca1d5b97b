"""Mixup and CutMix of a recipe: torchvision's images and labels, from random numbers that depend on the step alone."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from small_methods import Decays, Nothing
from small_training import CLASSES, RECIPE, SmallBatches, assert_it_resumes, small_trainer

from suite.engine.training.mixing import BatchMixing
from suite.recipe import Augmentation

BATCH = next(SmallBatches(16, seed=1).epoch(0, 16))
IMAGES, LABELS = BATCH


def mixing(seed=0, **alphas):
    return BatchMixing(Augmentation(**alphas), CLASSES, seed)


def share_of(targets):
    """Return the share of each image in its mixture; the other one is that of the image before it."""
    own, before = F.one_hot(LABELS, CLASSES).float(), F.one_hot(LABELS.roll(1), CLASSES).float()
    (share,) = {
        round(value.item(), 6) for value in ((targets * own).sum(1) - (own * before).sum(1))[LABELS.roll(1) != LABELS]
    }
    torch.testing.assert_close(targets, share * own + (1 - share) * before)
    return share


def test_mixup_is_the_weighted_mean_of_images_and_labels():
    images, targets = mixing(mixup=0.5)(*BATCH, epoch=1, batch=2)
    share = share_of(targets)
    assert 0 < share < 1
    torch.testing.assert_close(images, share * IMAGES + (1 - share) * IMAGES.roll(1, 0))
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_cutmix_replaces_a_rectangle_and_weighs_labels_by_its_area():
    mixed = mixing(cutmix=1.0)
    shares = set()
    for batch in range(8):
        images, targets = mixed(*BATCH, epoch=0, batch=batch)
        other = (images != IMAGES).any(1)[LABELS.roll(1) != LABELS]
        assert torch.equal(torch.where(other.any(0), IMAGES.roll(1, 0), IMAGES), images)
        share = share_of(targets)
        assert share == pytest.approx(1 - other.any(0).float().mean().item(), abs=1e-6)
        shares.add(share)
    assert len(shares) > 4


def test_both_take_turns_at_random():
    mixed = mixing(mixup=1.0, cutmix=1.0)
    whole = [bool(((mixed(*BATCH, 0, batch)[0] == IMAGES).all(1).float().mean()) < 0.01) for batch in range(24)]
    assert 4 < sum(whole) < 20


def test_the_draws_depend_on_seed_epoch_and_batch_and_leave_torchs_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = mixing(mixup=1.0)(*BATCH, 3, 4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again = mixing(mixup=1.0)(*BATCH, 3, 4)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    for seed, epoch, batch in ((1, 3, 4), (0, 2, 4), (0, 3, 5)):
        assert not torch.equal(mixing(seed, mixup=1.0)(*BATCH, epoch, batch)[0], first[0])


def test_a_training_uses_the_mixed_batches_and_resumes_bit_for_bit():
    recipe = dataclasses.replace(RECIPE, mixup=0.4, cutmix=1.0, label_smoothing=0.1)
    assert_it_resumes(lambda **callbacks: small_trainer(Decays(), recipe, **callbacks), after=[1])

    seen = []
    trainer = small_trainer(Nothing(), dataclasses.replace(recipe, epochs=1, learning_rate=0.0))
    gradients = trainer.step.gradients
    trainer.step.gradients = lambda *batch: seen.append(batch[:2]) or gradients(*batch)
    record = trainer.train_epoch()
    draw = BatchMixing(recipe.augmentation, CLASSES, 0)
    wanted = [draw(*batch, 0, index) for index, batch in enumerate(SmallBatches(64, seed=1).epoch(0, 16))]
    for (images, targets), (other_images, other_targets) in zip(seen, wanted, strict=True):
        assert torch.equal(images, other_images)
        assert torch.equal(targets, other_targets)
    fresh = small_trainer(Nothing(), recipe).model.train()
    losses = [F.cross_entropy(fresh(images), targets, label_smoothing=0.1).item() for images, targets in wanted]
    assert record["train_loss"] == pytest.approx(sum(losses) / 4, rel=1e-6)
