from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from suite.errors import UsageError
from suite.recipe import Augmentation
from tasks.cifar import NORMALIZATION
from tasks.images.augmentation import UNCHANGED, draw_epoch
from tasks.pipeline import DeviceBatches, Normalization

CPU = torch.device("cpu")
FILL = (125, 123, 114)


def make(
    count: int = 12,
    *,
    side: int = 8,
    training: bool = True,
    seed: int = 0,
    augmentation: Augmentation = UNCHANGED,
    normalization: Normalization = NORMALIZATION,
    drop_last: bool = True,
    device: str = "cpu",
) -> tuple[DeviceBatches, NDArray[np.uint8], NDArray[np.int64]]:
    random = np.random.RandomState(7)
    images = random.randint(0, 256, (count, side, side + 2, len(normalization.mean))).astype(np.uint8)
    labels = np.arange(count, dtype=np.int64)
    batches = DeviceBatches(
        images,
        labels,
        normalization=normalization,
        device=torch.device(device),
        training=training,
        seed=seed,
        augmentation=augmentation,
        drop_last=drop_last,
    )
    return batches, images, labels


def gathered(batches: DeviceBatches, epoch: int, batch_size: int) -> tuple[Tensor, Tensor]:
    images, labels = zip(*batches.epoch(epoch, batch_size), strict=True)
    return torch.cat(images), torch.cat(labels)


def back_to_bytes(images: Tensor) -> NDArray[np.uint8]:
    """(N, H, W, C) uint8 from normalised (N, C, H, W)."""
    mean, std = torch.tensor(NORMALIZATION.mean), torch.tensor(NORMALIZATION.std)
    return (images.permute(0, 2, 3, 1) * std + mean).round().clamp(0, 255).to(torch.uint8).numpy()


def augmented_one_by_one(
    images: NDArray[np.uint8], seed: int, epoch: int, augmentation: Augmentation
) -> NDArray[np.uint8]:
    """The reference: each image mirrored, padded and cropped, and cut out in turn."""
    count, height, width, _ = images.shape
    draws = draw_epoch(seed, epoch, count, height, width, augmentation, CPU)
    result = []
    for position, index in enumerate(draws.order.tolist()):
        image = images[index]
        if draws.mirrored is not None and draws.mirrored[position]:
            image = image[:, ::-1]
        if draws.shift is not None:
            border = augmentation.translate
            if augmentation.crop_padding == "reflect":
                padded = np.pad(image, ((border, border), (border, border), (0, 0)), mode="reflect")
            else:
                padded = np.empty((height + 2 * border, width + 2 * border, 3), dtype=np.uint8)
                padded[:] = FILL if augmentation.crop_padding == "mean" else 0
                padded[border : border + height, border : border + width] = image
            down, right = draws.shift[position].tolist()
            image = padded[down : down + height, right : right + width]
        image = image.copy()
        if draws.corner is not None:
            top, left = draws.corner[position].tolist()
            image[top : top + augmentation.cutout, left : left + augmentation.cutout] = FILL
        result.append(image)
    return np.stack(result)


AUGMENTATIONS = st.builds(
    lambda mirrors, **others: Augmentation(flip=mirrors > 0, alternating_flip=mirrors > 1, **others),
    st.integers(0, 2),
    translate=st.integers(0, 4),
    cutout=st.integers(0, 5),
    crop_padding=st.sampled_from(["mean", "black", "reflect"]),
)


@settings(max_examples=40)
@given(AUGMENTATIONS, st.integers(0, 2**40), st.integers(0, 500))
def test_augmented_batches_equal_a_loop_over_images(augmentation: Augmentation, seed: int, epoch: int) -> None:
    batches, images, _ = make(seed=seed, augmentation=augmentation)
    got, _ = gathered(batches, epoch, 4)
    np.testing.assert_array_equal(back_to_bytes(got), augmented_one_by_one(images, seed, epoch, augmentation))


@settings(max_examples=40)
@given(AUGMENTATIONS, st.integers(1, 8), st.integers(0, 2**40), st.integers(0, 500))
def test_cropped_batches_are_windows_of_the_batches_of_full_size(
    augmentation: Augmentation, side: int, seed: int, epoch: int
) -> None:
    full, _, _ = make(seed=seed, augmentation=augmentation)
    whole, labels = gathered(full, epoch, 4)
    windows, labels_of_windows = gathered(full.shrunk(side, crop=True), epoch, 4)
    corners = draw_epoch(seed, epoch, 12, 8, 10, augmentation, CPU, window=side).window
    assert corners is not None
    expected = [
        image[:, row : row + side, column : column + side]
        for image, (row, column) in zip(whole, corners.tolist(), strict=True)
    ]
    assert torch.equal(windows, torch.stack(expected))
    assert torch.equal(labels_of_windows, labels)
    assert torch.equal(gathered(full, epoch, 4)[0], whole)  # the split of full size stays as it is


@pytest.mark.parametrize("side", [3, 8])
def test_resized_batches_are_the_batches_of_full_size_as_torch_resizes_them(side: int) -> None:
    full, _, _ = make(augmentation=Augmentation(translate=2, cutout=3))
    batches = zip(full.epoch(1, 4), full.shrunk(side, crop=False).epoch(1, 4), strict=True)
    for (images, labels), (resized, labels_of_resized) in batches:
        assert torch.equal(resized, F.interpolate(images, size=(side, side), mode="bilinear", antialias=True))
        assert torch.equal(labels_of_resized, labels)


def test_each_image_has_a_window_of_its_own_in_each_epoch_at_every_position_alike() -> None:
    count, side = 5000, 5
    places = np.arange(8 * 10, dtype=np.uint8).reshape(1, 8, 10, 1)  # each pixel says where it is
    images, labels = places.repeat(count, axis=0), np.arange(count)

    def corners(epoch: int = 0, batch_size: int = count, seed: int = 0) -> Tensor:
        split = DeviceBatches(
            images, labels, normalization=Normalization((0.0,), (1.0,)), device=CPU, training=True, seed=seed
        )
        windows, _ = gathered(split.shrunk(side, crop=True), epoch, batch_size)
        return windows[:, 0, 0, 0].long()

    first = corners()
    rows, columns = first // 10, first % 10
    assert (torch.bincount(6 * rows + columns, minlength=24) / count - 1 / 24).abs().max() < 0.012
    assert torch.equal(corners(batch_size=100), first)
    for other in (corners(epoch=1), corners(seed=1), first.roll(1)):
        assert (other == first).float().mean() < 0.1


def test_smaller_images_of_an_alternating_flip_are_mirrored_in_every_other_epoch() -> None:
    split = make(augmentation=Augmentation(alternating_flip=True))[0].shrunk(4, crop=False)
    first, second, third = (images[labels.argsort()] for images, labels in (gathered(split, e, 4) for e in range(3)))
    assert torch.equal(first, third)
    torch.testing.assert_close(second, first.flip(3))


@pytest.mark.parametrize("crop", [True, False])
def test_shares_of_smaller_batches_are_the_parts_of_the_whole_batch(crop: bool) -> None:
    split = make(11, drop_last=False, augmentation=Augmentation(translate=2, cutout=3))[0].shrunk(4, crop)
    shares = zip(*(split.share_of_epoch(1, 5, rank, 2) for rank in (0, 1)), strict=True)
    for (images, labels), parts in zip(split.epoch(1, 5), shares, strict=True):
        for (part, labels_of_part), expected, expected_labels in zip(
            parts, images.tensor_split(2), labels.tensor_split(2), strict=True
        ):
            assert torch.equal(part, expected)
            assert torch.equal(labels_of_part, expected_labels)


def test_samples_of_smaller_training_images_have_full_size() -> None:
    full, _, _ = make(augmentation=Augmentation(translate=2, cutout=3))
    for crop in (True, False):
        assert torch.equal(full.shrunk(4, crop).sample(5, seed=1), full.sample(5, seed=1))


def test_translation_that_moves_an_image_out_of_its_window_is_refused() -> None:
    make(augmentation=Augmentation(flip=False, translate=7))
    with pytest.raises(UsageError, match=r"recipe\.translate is 8; images have only 8x10 pixels"):
        make(augmentation=Augmentation(flip=False, translate=8))


def test_batches_are_float32_channels_last_with_int64_labels() -> None:
    for training in (True, False):
        whole, _, _ = make(training=training, augmentation=Augmentation(translate=2, cutout=3))
        smaller = [(whole.shrunk(5, crop), (5, 5)) for crop in (True, False)] if training else []
        for (images, labels), size in (
            (batch, size) for batches, size in ((whole, (8, 10)), *smaller) for batch in batches.epoch(0, 4)
        ):
            assert images.dtype == torch.float32
            assert images.shape == (4, 3, *size)
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert labels.dtype == torch.int64


def test_same_seed_and_epoch_give_the_same_batches_in_any_order_of_asking() -> None:
    first, _, _ = make(seed=3, augmentation=Augmentation(translate=2, cutout=3))
    second, _, _ = make(seed=3, augmentation=Augmentation(translate=2, cutout=3))
    early = gathered(first, 0, 4)
    late = gathered(first, 5, 4)
    torch.manual_seed(99)
    for got, expected in ((gathered(second, 5, 4), late), (gathered(second, 0, 4), early)):
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])


def test_other_epochs_and_other_seeds_give_other_batches() -> None:
    batches, _, _ = make(seed=3, augmentation=Augmentation(translate=2, cutout=3))
    other_seed, _, _ = make(seed=4, augmentation=Augmentation(translate=2, cutout=3))
    orders = [gathered(batches, epoch, 12)[1] for epoch in range(3)] + [gathered(other_seed, 0, 12)[1]]
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_drawing_leaves_the_global_generator_alone() -> None:
    batches, _, _ = make(augmentation=Augmentation(translate=2, cutout=3))
    torch.manual_seed(5)
    gathered(batches, 0, 4)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))


def test_switching_one_augmentation_off_leaves_the_others() -> None:
    everything = draw_epoch(1, 2, 50, 32, 32, Augmentation(translate=2, cutout=4), CPU, window=4)
    without = draw_epoch(1, 2, 50, 32, 32, Augmentation(flip=False, translate=2), CPU)
    assert without.mirrored is None
    assert without.corner is None
    assert without.window is None
    assert not torch.equal(everything.window, everything.corner)
    assert torch.equal(everything.order, without.order)
    assert everything.shift is not None
    assert without.shift is not None
    assert torch.equal(everything.shift, without.shift)


def test_an_alternating_flip_mirrors_each_image_in_every_other_epoch() -> None:
    augmentation = Augmentation(alternating_flip=True)
    epochs = [draw_epoch(1, epoch, 50, 32, 32, augmentation, CPU) for epoch in range(4)]
    by_image = []
    for draws in epochs:
        assert draws.mirrored is not None
        by_image.append(draws.mirrored[draws.order.argsort()])
    assert 15 < by_image[0].sum() < 35
    assert torch.equal(by_image[1], ~by_image[0])
    assert torch.equal(by_image[2], by_image[0])
    assert torch.equal(by_image[3], by_image[1])
    assert not torch.equal(epochs[0].order, epochs[2].order)


def test_draws_cover_their_whole_range_evenly() -> None:
    draws = draw_epoch(0, 0, 20_000, 32, 32, Augmentation(translate=2, cutout=4), CPU)
    assert draws.mirrored is not None
    assert draws.shift is not None
    assert draws.corner is not None
    assert 0.48 < draws.mirrored.float().mean() < 0.52
    for axis in (0, 1):
        assert (torch.bincount(draws.shift[:, axis]) / 20_000 - 1 / 5).abs().max() < 0.015
        assert (torch.bincount(draws.corner[:, axis]) / 20_000 - 1 / 29).abs().max() < 0.01


def test_training_sees_every_image_once_with_the_last_smaller_batch() -> None:
    augmentation = Augmentation(translate=2, cutout=3)
    batches, images, _ = make(11, drop_last=False, augmentation=augmentation)
    assert batches.steps_per_epoch(4) == 3
    assert [len(labels) for _, labels in batches.epoch(1, 4)] == [4, 4, 3]
    got, labels = gathered(batches, 1, 4)
    assert sorted(labels.tolist()) == list(range(11))
    np.testing.assert_array_equal(back_to_bytes(got), augmented_one_by_one(images, 0, 1, augmentation))
    whole, _, _ = make(11, augmentation=augmentation)
    assert torch.equal(gathered(whole, 1, 4)[0], got[:8])  # the same images, by the same numbers
    assert [len(labels) for _, labels in batches.epoch(0, 20)] == [11]


def test_labels_stay_with_their_images() -> None:
    batches, images, _ = make()
    got, labels = gathered(batches, 3, 4)
    np.testing.assert_array_equal(back_to_bytes(got), images[labels.numpy()])


def test_evaluation_sees_every_image_once_in_order_and_unaugmented() -> None:
    batches, images, labels = make(11, training=False, augmentation=Augmentation(translate=2, cutout=3))
    assert batches.steps_per_epoch(4) == 3
    got, got_labels = gathered(batches, 6, 4)
    np.testing.assert_array_equal(back_to_bytes(got), images)
    np.testing.assert_array_equal(got_labels.numpy(), labels)


def test_a_training_split_smaller_than_a_batch_is_a_usage_error() -> None:
    batches, _, _ = make(11)
    with pytest.raises(UsageError, match="batch of 12 is larger than the training split of 11"):
        batches.steps_per_epoch(12)
    with pytest.raises(UsageError):
        batches.epoch(0, 12)


def test_a_cutout_larger_than_the_image_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="cutout"):
        make(augmentation=Augmentation(flip=False, cutout=9))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("crop", [None, True, False])
def test_cuda_sees_the_batches_of_the_cpu(crop: bool | None) -> None:
    splits = (
        make(seed=1, augmentation=Augmentation(translate=2, cutout=3), device=device)[0] for device in ("cpu", "cuda")
    )
    (on_cpu, labels_cpu), (on_cuda, labels_cuda) = (
        gathered(split if crop is None else split.shrunk(5, crop), 2, 4) for split in splits
    )
    assert torch.equal(labels_cpu, labels_cuda.cpu())
    torch.testing.assert_close(on_cuda.cpu(), on_cpu, rtol=0, atol=1e-6)
