"""ClickTrain's stages, step by step, and what it refuses to begin with."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from small_clicktrain import SHAPE, Run, network, stages
from torch import nn

from methods.clicktrain import ClickTrain
from methods.dense import Dense
from methods.shared.clicktrain_settings import compression
from suite.choices import build_model
from suite.ops import apply
from tasks.models.clicktrain_vgg import vgg11_click
from tasks.models.resnet9 import resnet9


def plain(groups=1, frozen=False):
    """A network of three convolutions of four channels."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=groups), nn.Conv2d(4, 4, 3, padding=1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10),
    )  # fmt: skip
    model[1].weight.requires_grad_(not frozen)
    return model


class Branching(nn.Module):
    """Whose path depends on values, so that nothing follows it; and which has a layer that is never used."""

    def __init__(self, *, follows):
        super().__init__()
        self.body, self.unused, self.follows = plain(), nn.Conv2d(4, 4, 3), follows

    def forward(self, images):
        if not self.follows and images.sum() > 0:
            images = -images
        return self.body(images)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (plain(), {"compression": 1e9}, r"'1': pruning 100 % of the kernels leaves the layer none; compress less"),
        (plain(), {"compression": 4.0, "balance": "filter", "ratios": "solved"}, None),
        (
            plain(),
            {"compression": 20.0, "balance": "filter"},
            "'1': pruning 88.75 % of the kernels leaves a filter none",
        ),
        (plain(frozen=True), {}, "'1' is not trained, so that its weights have no saliency"),
        (
            plain(),
            {"ratios": "cifar10-vgg11_click-1"},
            "ratios=cifar10-vgg11_click-1 on this network: a list of 7 ratios",
        ),
        (Branching(follows=False), {}, "the model could not be traced, so that its first layer"),
    ],
)
def test_layers_that_cannot_be_pruned_are_named_before_the_warm_up(model, given, message):
    def begin():
        apply(model, ClickTrain(**given), input_shape=SHAPE, num_classes=10, epochs=4, batch_size=4)

    if message is None:
        return begin()
    with pytest.raises(ValueError, match=message):
        begin()


def test_a_layer_that_the_model_never_calls_is_left_alone():
    method = ClickTrain()
    apply(Branching(follows=True), method, input_shape=SHAPE, num_classes=10, epochs=4, batch_size=4)
    assert "unused" not in method._percent
    assert method._percent


def test_a_list_does_not_reach_into_grouped_convolutions(monkeypatch):
    monkeypatch.setattr("methods.shared.clicktrain_settings.by_layer", lambda ratios, layers: {"1": 50.0, "2": 50.0})
    method = ClickTrain(ratios="cifar10-vgg11_click-1")
    with pytest.raises(ValueError, match="'1' is a grouped convolution"):
        apply(plain(groups=2), method, input_shape=SHAPE, num_classes=10, epochs=4, batch_size=4)


def test_a_batch_that_never_comes_is_not_waited_for():
    given = {"input_shape": SHAPE, "num_classes": 10, "epochs": 4, "batch_size": 8, "train_images": 80}
    apply(plain(), ClickTrain(batches=10), **given)
    with pytest.raises(ValueError, match="batches is 11; the epoch in which patterns are chosen has 10"):
        apply(plain(), ClickTrain(batches=11), **given)


def test_where_the_paper_masks_before_a_configuration_chooses_it_is_chosen_earlier():
    method = ClickTrain(schedule="paper", mixup=0.0)
    model = build_model("vgg16_click[width=0.0625]", SHAPE, 10)
    apply(model, method, input_shape=SHAPE, num_classes=10, epochs=190, batch_size=4, task="cifar10",
          network="vgg16_click")  # fmt: skip
    assert (method.choose_epoch, method.hard_prune_epoch) == (43, 95)


def test_short_presets_have_no_mixup():
    assert ClickTrain.defaults("cifar10", "quick") == {"mixup": 0.0}
    assert ClickTrain.defaults("cifar10", "paper") == {}


def test_stages_have_to_ascend():
    with pytest.raises(ValueError, match="patterns would be chosen after 4 and weights masked after 3"):
        apply(resnet9(width=1 / 16), ClickTrain(warmup=0.9), input_shape=SHAPE, num_classes=10,
              epochs=4, batch_size=4)  # fmt: skip


def test_the_first_batch_after_the_warm_up_decides_alone():
    run = Run(stages())
    run.epochs(1)
    assert run.method.record(run.hooks.ctx)["stage"] == "warm-up"
    run.step(10)
    chosen = {name: numbers.clone() for name, numbers in run.method._masks._patterns.items()}
    threes = [name for name, layer in run.hooks.ctx.layers.items() if layer.weight.shape[2:] == (3, 3)]
    assert [*chosen] == threes[1:]
    for name, numbers in chosen.items():
        saliency = (run.gradients[name] * run.before[name]).square()
        worth = torch.stack(
            [saliency[:, :, 1:, 1:], saliency[:, :, 1:, :2], saliency[:, :, :2, 1:], saliency[:, :, :2, :2]]
        )
        assert torch.equal(worth.sum((3, 4)).argmax(0), numbers)
        gone = run.method._masks[name].kernels
        assert gone.sum() == math.ceil(0.71875 * gone.numel())
        importance = saliency.sum((2, 3))
        assert importance[gone].max() <= importance[~gone].min()
    run.step(11)
    run.step(12)
    run.hooks.end_epoch()
    run.epochs(2)
    assert all(torch.equal(chosen[name], numbers) for name, numbers in run.method._masks._patterns.items())


def test_saliencies_of_several_batches_are_averaged():
    run = Run(stages(batches=2))
    run.epochs(1)
    run.step(10)
    first = {name: (run.gradients[name] * run.before[name]).square() for name in run.gradients}
    assert not run.method._masks._patterns
    run.step(11)
    name = next(iter(first))
    both = first[name] + (run.gradients[name] * run.before[name]).square()
    gone = run.method._masks[name].kernels
    assert both.sum((2, 3))[gone].max() <= both.sum((2, 3))[~gone].min()


def test_the_lasso_runs_from_the_next_step_until_weights_are_masked():
    run = Run(stages())
    penalised = []
    run.epochs(4, each=lambda epoch, step: penalised.append(run.method._penalised))
    assert penalised == [False] * 4 + [True] * 2 + [False] * 6


def test_the_lasso_is_the_coefficient_times_the_norms_of_what_goes():
    run = Run(stages(coefficient=0.25))
    run.epochs(1)
    run.step(10)
    by_hand = 0.0
    for name, weight in run.weights().items():
        mask = run.method._masks[name]
        by_hand += (weight.square().mul(mask.outside).sum((2, 3)) + 1e-8).sqrt().sum().item()
        by_hand += (weight.square().sum((2, 3)) * mask.kernels + 1e-8).sqrt().sum().item()
    term = run.method.regularization(run.model, run.hooks.ctx)
    assert term.item() == pytest.approx(0.25 * by_hand, rel=1e-5)
    none = Run(stages(coefficient=0.0))
    none.epochs(1)
    none.step(10)
    assert none.method.regularization(none.model, none.hooks.ctx) is None


def test_a_network_s_pool_is_that_of_its_configuration():
    for name, size in (("vgg16_click", 12), ("vgg11_click", 4)):
        run = Run(stages(pool="published", hard_prune=0.75), build_model(f"{name}[width=0.0625]", SHAPE, 10),
                  "cifar10", name)  # fmt: skip
        run.epochs(1)
        run.step(10)
        assert len(run.method._masks._pool) == size


def test_saliencies_go_on_where_a_checkpoint_stopped_them():
    run = Run(stages(batches=4))  # of three steps an epoch
    run.epochs(2)
    whole = run.method
    other = Run(stages(batches=4))
    other.epochs(1)
    for step in range(3):
        other.step(10 + step)
    state = other.method.state_dict()
    assert not state["patterns"]
    again = stages(batches=4)
    again.setup(other.hooks.ctx)
    again.load_state_dict(state)
    other.method = other.hooks.method = again
    other.hooks.end_epoch()
    for one in (run, other):
        one.step(20)
    assert whole._masks._patterns
    for name, numbers in whole._masks._patterns.items():
        assert torch.equal(numbers, again._masks._patterns[name])
        assert torch.equal(whole._masks[name].kernels, again._masks[name].kernels)


def test_what_the_method_spends_is_counted_in_its_stage():
    run = Run(stages())
    name = "down.conv" if "down.conv" in run.weights() else next(iter(run.weights()))
    weight = run.weights()[name]
    spent = []
    run.epochs(4, each=lambda epoch, step: spent.append(run.method.overhead(name, 8, run.hooks.ctx)))
    lasso = 8 * weight.numel() + 3 * 2 * weight.shape[0] * weight.shape[1]
    assert spent == [0.0] * 4 + [lasso] * 2 + [weight.numel()] * 6
    assert run.method.overhead("nobody", 8, run.hooks.ctx) == 0.0


def test_stages_are_named_in_the_record():
    run = Run(stages())
    named = []
    for _ in range(4):
        run.epochs(1)
        named.append(run.method.record(run.hooks.ctx)["stage"])
    assert named == ["warm-up", "lasso", "masked", "masked"]


def test_compression_is_of_pruned_layers_where_no_tensor_has_a_convolution_s_name():
    assert compression(plain(), {"1": 0.25, "2": 0.75}) == 2.0


@pytest.mark.parametrize("mask_momentum", [False, True])
def test_from_hard_pruning_on_what_goes_is_zero_after_every_step(mask_momentum):
    run = Run(stages(mask_momentum=mask_momentum))
    held = []

    def look(epoch, step):
        if epoch < 2:
            assert all(weight.count_nonzero() == weight.numel() for weight in run.weights().values())
            return
        for name, weight in run.weights().items():
            mask = run.method._masks[name]
            stays = mask.kept(weight.detach()).bool()
            assert not weight[~stays].any()
            assert weight[stays].all()
            held.append(bool(run.optimizer.state[weight]["momentum_buffer"][~stays].any()))
        share = 4 / 9 * (1 - math.ceil(0.71875 * stays.shape[0] * stays.shape[1]) / stays.shape[0] / stays.shape[1])
        assert run.method.density(name, run.hooks.ctx) == pytest.approx((share,) * 3)

    run.epochs(4, look)
    assert any(held) is not mask_momentum

    def in_step(step):
        return dataclasses.replace(run.hooks.ctx, step=step)

    first_masked = 6  # the step whose update is the first to be masked; its own products were dense
    assert run.method.density(name := next(iter(run.weights())), in_step(first_masked)) == (1, 1, 1)
    assert run.method.density(name, in_step(first_masked + 1)).forward < 0.14
    record = run.method.record(run.hooks.ctx)
    assert record["stage"] == "masked"
    kept = sum(int(weight.count_nonzero()) for weight in run.weights().values())
    assert sum(record["patterns"].values()) * 4 == kept
    assert set(record["patterns"]) == {"000011011", "000110110", "011011000", "110110000"}


def test_the_warm_up_is_dense_training_bit_for_bit():
    ours, dense = Run(stages(mixup=0.3)), Run(Dense())
    dense.weights = dict  # nothing to keep copies of
    for run in (ours, dense):
        run.epochs(1)
    states = ours.model.state_dict()
    assert all(torch.equal(tensor, states[name]) for name, tensor in dense.model.state_dict().items())
    for run in (ours, dense):
        run.epochs(1)
    assert not all(torch.equal(tensor, states[name]) for name, tensor in dense.model.state_dict().items())


def test_mixup_begins_with_hard_pruning():
    run = Run(stages(mixup=0.3))
    run.epochs(2)
    assert run.step(20).shape == (8, 10)
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.randn(8, *SHAPE, generator=generator), torch.arange(8)
    mixed, targets = run.method.transform_batch(images, labels, run.hooks.ctx)
    torch.testing.assert_close(targets.sum(1), torch.ones(8))
    share = targets[torch.arange(8), labels].amin().item()
    assert 0 <= share <= 1
    others = (targets - share * F.one_hot(labels, 10)).argmax(1)
    torch.testing.assert_close(mixed, share * images + (1 - share) * images[others], rtol=1e-4, atol=1e-5)
    again, _ = run.method.transform_batch(images, labels, run.hooks.ctx)
    assert torch.equal(mixed, again)  # drawn by the step, not by what was drawn before
    run.hooks.ctx.step += 1
    later, _ = run.method.transform_batch(images, labels, run.hooks.ctx)
    assert not torch.equal(mixed, later)
    early = Run(stages(mixup=0.3))
    same, _ = early.method.transform_batch(images, labels, early.hooks.ctx)
    assert same is images


def test_kernels_of_1x1_convolutions_go_whole_and_what_is_not_listed_stays():
    model, layers, _ = network("resnet50_wide[width=0.125]")
    run = Run(ClickTrain(mixup=0.0), model, task="cifar10", network="resnet50_wide")
    assert (run.method.choose_epoch, run.method.hard_prune_epoch) == (1, 3)  # 61 and 141 of 190
    run.epochs(4)
    listed = set(run.method._percent)
    assert listed == {name for name in layers if ".branch.conv" in name}
    for name, layer in run.hooks.ctx.layers.items():
        if name not in listed:
            assert layer.weight.count_nonzero() == layer.weight.numel()
        elif name.endswith("conv2"):
            assert name in run.method._masks._patterns
        else:
            assert name not in run.method._masks._patterns
            gone = math.ceil(run.method._percent[name] * layer.weight.numel() / 100)
            assert int((layer.weight == 0).sum()) == gone


def test_a_network_takes_the_list_of_its_task_and_a_name_takes_another():
    model = vgg11_click(width=1 / 16)
    run = Run(ClickTrain(), model, task="cifar10", network="vgg11_click")
    assert [*run.method._percent.values()] == [35, 45, 65, 75, 80, 80, 85]
    assert run.method._coefficient == 3.5e-4
    named = Run(ClickTrain(ratios="cifar10-vgg11_click-1", coefficient=1.0), vgg11_click(width=1 / 16))
    assert [*named.method._percent.values()] == [45, 55, 55, 65, 65, 85, 85]
    assert named.method._coefficient == 1.0
    for given in ({"ratios": "solved", "compression": 9.0}, {"compression": 9.0}):
        solved = Run(ClickTrain(**given), vgg11_click(width=1 / 16), "cifar10", "vgg11_click")
        assert [*solved.method._percent.values()] == pytest.approx([75.0] * 7)


def test_a_solved_compression_is_spread_as_the_allocation_says():
    found = {}
    for allocation in ("uniform", "erdos_renyi"):
        method = ClickTrain(compression=8.0, allocation=allocation)
        run = Run(method, vgg11_click(width=1 / 4), "cifar10", "vgg11_click")
        weights = run.weights()
        found[allocation] = percents = [method._percent[name] for name in weights]
        sizes = [weight.numel() for weight in weights.values()]
        kept = sum(size * (1 - percent / 100) for size, percent in zip(sizes, percents, strict=True))
        assert 4 / 9 * kept / sum(sizes) == pytest.approx(1 / 8)
    assert found["uniform"] == pytest.approx([71.875] * 7)
    # The first, of 16 to 32 channels, would have more than all of its kernels and keeps them. Of all 64,000 kernels,
    # 18,000 stay; the others share 17,488 by K + C + 6.
    by_sum = dict(zip(((64, 32), (64, 64), (128, 64), (128, 128)), (102, 134, 198, 262), strict=True))
    left = [100 * (1 - 17488 * by_sum[size] / (102 + 134 + 198 + 3 * 262) / (size[0] * size[1])) for size in by_sum]
    assert found["erdos_renyi"] == pytest.approx([0, *left[:3], *[left[3]] * 3])
    solved = Run(ClickTrain(ratios="solved", allocation="erdos_renyi"), vgg11_click(width=1 / 4), "x", "vgg11_click")
    assert [*solved.method._percent.values()] == found["erdos_renyi"]  # 8 where no table has the network


def test_the_paper_masks_earlier_than_the_configuration():
    model, given = vgg11_click(), {"input_shape": SHAPE, "num_classes": 10, "batch_size": 4}
    for schedule, epoch in (("config", 143), ("paper", 94)):  # of Fig. 11 the row with the nearest compression, 11.5
        method = ClickTrain(schedule=schedule)
        apply(model, method, task="cifar10", network="vgg11_click", epochs=190, **given)
        assert (method.choose_epoch, method.hard_prune_epoch) == (65, epoch)


def test_a_network_without_3x3_convolutions_is_refused():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
    with pytest.raises(ValueError, match="no 3x3 convolution after its first layer"):
        apply(model, ClickTrain(), input_shape=SHAPE, num_classes=10, epochs=4, batch_size=4)


@pytest.mark.parametrize("given", [{"pool": "dynamic"}, {"pool": 12, "balance": "filter"}, {"scope": "filter"}])
def test_variants_mask_as_they_say(given):
    run = Run(stages(**given))
    run.epochs(4)
    for name, weight in run.weights().items():
        alive = (weight != 0).sum((2, 3))
        assert set(alive.unique().tolist()) <= {0, 4}
        if "balance" in given:
            assert len((alive > 0).sum(1).unique()) == 1
        if "scope" in given:
            numbers = run.method._masks._patterns[name]
            assert torch.equal(numbers, numbers[:, :1].expand_as(numbers))
