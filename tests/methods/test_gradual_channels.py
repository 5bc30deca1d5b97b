"""Gradual channel pruning: widths by schedule, which channels go, and where their means go."""

import dataclasses
import random

import pytest
import torch
from small_training import CLASSES, RECIPE, SHAPE, assert_it_resumes, fitted, small_net, small_trainer
from torch import nn

from methods.gradual_channels import GradualChannels
from suite.ops import apply

SIZES = {"input_shape": SHAPE, "num_classes": CLASSES, "epochs": 10, "batch_size": 16}
METHOD = {"width": 0.5, "end": 0.5}


def start(model=None, epochs=10, **parameters):
    torch.manual_seed(0)
    return apply(model or small_net(), GradualChannels(**METHOD | parameters), **SIZES | {"epochs": epochs})


def end_epoch(hooks, images=None):
    """End an epoch with a batch; return the plan without carrying it out."""
    ctx = hooks.ctx
    if images is not None:
        hooks.transform_batch(images, torch.zeros(len(images), dtype=torch.int64))
    ctx.epochs_done += 1
    ctx.progress = ctx.epochs_done / ctx.epochs
    hooks.method.on_epoch_end(ctx)
    return hooks.method.reconfigure(ctx)


def widths(epochs, **parameters):
    """Return the width of the residual stage, of 8 channels at first, after each epoch."""
    hooks, sizes = start(epochs=epochs, **parameters), []
    for _ in range(epochs):
        hooks.end_epoch()
        sizes.append(hooks.ctx.spaces["0"].size)
    return sizes


def test_widths_follow_the_schedule():
    linear = [7, 6, 6, 5, 4, 4, 4, 4, 4, 4]  # 7.2, 6.4, 5.6, 4.8, 4
    assert widths(10) == linear
    assert widths(10, start=0.2, end=0.6) == [8, 8, 7, 6, 5, 4, 4, 4, 4, 4]
    # 1 - 0.5 * (1 - (1 - x)^3) of 8 channels: 6.048, 4.864, 4.256, 4.032
    assert widths(10, schedule="cubic") == [6, 5, 4, 4, 4, 4, 4, 4, 4, 4]
    assert widths(10, every=2) == [8, 6, 6, 5, 4, 4, 4, 4, 4, 4]  # and where the schedule ends
    assert widths(10, round_to=4) == [8, 8, 8, 8, 4, 4, 4, 4, 4, 4]
    assert widths(4, end=1.0) == [7, 6, 4, 4]  # the last cut is before the last epoch
    assert widths(2, start=0.8, end=0.9) == [4, 4]
    assert widths(10, width=0.01) == [6, 5, 3, 2, 1, 1, 1, 1, 1, 1]


def slow(model, width):
    """Return what remains of each space by loops over the channels, for the names of a small net."""
    rows = {"0": ("0", "3.branch.3"), "3.branch.0": ("3.branch.0",), "4": ("4",)}
    columns = {"0": ("3.branch.0", "4"), "3.branch.0": ("3.branch.3",), "4": ("8",)}
    kept = {}
    for name in rows:
        sums = []
        for channel in range(8):
            total = sum(
                float(model.get_submodule(one).weight.data[channel].double().square().sum()) for one in rows[name]
            )
            total += sum(
                float(model.get_submodule(one).weight.data[:, channel].double().square().sum()) for one in columns[name]
            )
            sums.append((total, channel))
        kept[name] = sorted(channel for _, channel in sorted(sums)[8 - max(1, round(width * 8)) :])
    return kept


def test_the_smallest_group_norms_go_as_in_the_slow_definition():
    hooks, draw = start(compensate=False), random.Random(0)
    hooks.ctx.epochs_done, hooks.ctx.progress = 9, 0.9
    for case in range(200):
        torch.manual_seed(case)
        hooks.method.width = draw.uniform(0.01, 0.93)
        for layer in hooks.ctx.layers.values():
            layer.weight.data = torch.randn_like(layer.weight) * draw.choice([0.1, 1, 3])
        hooks.method.on_epoch_end(hooks.ctx)
        plan = hooks.method.reconfigure(hooks.ctx)
        assert plan.kept == slow(hooks.model, hooks.method.width), case


def test_the_weights_of_a_small_case_by_hand():
    """Sums of squares: outputs 1, 4, 9, and inputs of two classes 18, 8, 2. The third channel goes, with 11."""
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES))
    hooks = start(model, width=0.67, end=0.1)
    model[0].weight.data = torch.zeros(3, 3, 1, 1)
    model[0].weight.data[:, 0, 0, 0] = torch.tensor([-1.0, 2.0, 3.0])
    model[4].weight.data = torch.zeros(CLASSES, 3)
    model[4].weight.data[:2] = torch.tensor([3.0, 2.0, -1.0])
    assert end_epoch(hooks, torch.zeros(2, *SHAPE)).kept == {"0": [0, 1]}


class Constant(nn.Module):
    """Convolutions without padding or bias, with normalisation; two channels of each emit a constant.

    Behind the second convolution is a pooling, and behind the third none: its bias takes the mean.
    """

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 6, 1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.norm2 = nn.Conv2d(6, 6, 3, stride=2, bias=False), nn.BatchNorm2d(6)
        self.pool, self.act, self.average = nn.MaxPool2d(2), nn.GELU(), nn.AdaptiveAvgPool2d(1)
        self.conv3 = nn.Conv2d(6, 6, 1)
        self.classifier = nn.Linear(6, CLASSES)
        for norm in (self.norm1, self.norm2):
            nn.init.normal_(norm.bias, 1.0)
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)
        with torch.no_grad():
            for layer in (self.conv1, self.conv2, self.conv3):
                layer.weight[[1, 4]] = 0.0

    def forward(self, images):
        x = self.act(self.norm1(self.conv1(images)))
        x = self.act(self.norm2(self.pool(self.conv2(x))))
        return self.classifier(self.average(self.act(self.conv3(x))).flatten(1))


def constant_net():
    torch.manual_seed(3)
    model = Constant()
    with torch.no_grad():
        for layer in (model.conv2, model.conv3, model.classifier):
            layer.weight[:, [1, 4]] *= 0.3  # so that these channels have the smallest norms
    return model


def test_channels_that_are_constant_go_without_a_change_of_the_function():
    images = torch.randn(16, *SHAPE)
    for compensate in (True, False):
        model = constant_net().eval()
        hooks = start(model, width=0.67, end=0.1, compensate=compensate)
        with torch.no_grad():
            before = model(images)
        model.train()
        hooks.transform_batch(images, torch.zeros(16, dtype=torch.int64))
        hooks.end_epoch()
        assert model.training
        assert {name: space.original for name, space in hooks.ctx.spaces.items() if not space.frozen} == {
            name: [0, 2, 3, 5] for name in ("conv1", "conv2", "conv3")
        }
        with torch.no_grad():
            difference = (model.eval()(images) - before).abs().max()
        assert (difference < 1e-5) if compensate else (difference > 0.01)
        assert hooks.method.record(hooks.ctx)["without_mean"] == []


def test_a_mean_is_that_of_all_images_and_positions_behind_padding_too():
    """A convolution with padding gets, as its bias, the mean that its output loses."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, CLASSES)),
    )
    hooks = start(model, width=0.75, end=0.1, ignore=("6",))
    model[0].weight.data[2] *= 0.1
    images = torch.randn(80, *SHAPE)
    with torch.no_grad():
        before = model[:3](images[:64]).mean((0, 2, 3))
        hooks.transform_batch(images, torch.zeros(80, dtype=torch.int64))
        hooks.end_epoch()
        after = model[:3](images[:64]).mean((0, 2, 3))
    assert hooks.ctx.spaces["0"].original == [0, 1, 3]
    torch.testing.assert_close(after, before)


class Added(nn.Module):
    """The second convolution has neither a bias nor a normalisation behind it: its output is changed before."""

    def __init__(self, change):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 3, 1, bias=False)
        self.norm, self.classifier, self.change = nn.BatchNorm2d(3), nn.Linear(3, CLASSES), change

    def forward(self, images):
        changed = self.change(self.conv2(torch.relu(self.conv1(images))), images)
        return self.classifier(self.norm(changed).mean((2, 3)))


@pytest.mark.parametrize(
    "change", [torch.add, lambda y, images: y.add_(images), lambda y, images: torch.relu_(y)], ids=["add", "+=", "relu"]
)
def test_a_layer_without_a_place_for_a_mean_is_named(change):
    hooks = start(Added(change), end=0.1)
    assert "conv1" in end_epoch(hooks, torch.randn(4, *SHAPE)).kept
    assert hooks.method.record(hooks.ctx) == {"share": 0.5, "without_mean": ["conv2"]}
    assert hooks.model.norm.running_mean.abs().max() == 0
    without_a_batch = start(small_net(), end=0.1)
    end_epoch(without_a_batch)
    assert set(without_a_batch.method.without) == {"3.branch.0", "3.branch.3", "4", "8"}


class TwoNorms(Constant):
    """Two normalisations read the output of the second convolution."""

    def forward(self, images):
        x = self.conv2(self.act(self.norm1(self.conv1(images))))
        return self.classifier(self.conv3(self.act(self.norm2(x)) + self.norm3(x)).mean((2, 3)))


def test_each_normalisation_behind_a_layer_gets_its_mean():
    torch.manual_seed(3)
    model = TwoNorms()
    model.norm3 = nn.BatchNorm2d(6)
    hooks = start(model, width=0.67, end=0.1)
    before = [norm.running_mean.clone() for norm in (model.norm2, model.norm3)]
    end_epoch(hooks, torch.randn(16, *SHAPE))
    moved = [norm.running_mean - old for norm, old in zip((model.norm2, model.norm3), before, strict=True)]
    assert moved[0].any()
    torch.testing.assert_close(*moved)


def test_several_ranks_take_the_mean_of_their_means():
    model = constant_net()
    hooks = start(model, width=0.67, end=0.1)
    biases = [model.conv3.bias.detach().clone()]
    hooks.ctx.ranks, hooks.ctx.all_reduce = 4, lambda tensor: 6 * tensor
    end_epoch(hooks, torch.randn(16, *SHAPE))
    one = constant_net()
    plain = start(one, width=0.67, end=0.1)
    end_epoch(plain, hooks.method.images)
    moved = [network.conv3.bias.detach() - biases[0] for network in (model, one)]
    torch.testing.assert_close(moved[0], 1.5 * moved[1])


def test_the_random_twin_removes_as_many_channels_and_the_seed_draws_them():
    plans = {}
    for seed, selection in ((0, "norm"), (0, "random"), (1, "random"), (1, "random")):
        hooks = start(selection=selection, compensate=False)
        hooks.ctx.seed = seed
        plan = end_epoch(hooks)
        assert plans.setdefault((seed, selection), plan) == plan
    assert len({str(plan.kept) for plan in plans.values()}) == 3
    assert all({len(kept) for kept in plan.kept.values()} == {7} for plan in plans.values())


def test_a_resumed_training_ends_with_equal_bits():
    method = METHOD | {"end": 0.8}
    assert_it_resumes(lambda **callbacks: small_trainer(GradualChannels(**method), **callbacks), after=(1, 2))


def test_a_training_ends_with_the_target_width():
    trainer, records = fitted(GradualChannels(**METHOD), RECIPE)
    assert {space.size for space in trainer.ctx.spaces.values() if not space.frozen} == {4}
    assert [record["method"]["share"] for record in records] == [pytest.approx(2 / 3), 0.5, 0.5]


def test_what_cannot_be_pruned_is_refused():
    with pytest.raises(ValueError, match=r"start=0.5 has to be before end=0.3"):
        GradualChannels(start=0.5)
    with pytest.raises(ValueError, match="this training has 1: take 2 or more"):
        small_trainer(GradualChannels(), dataclasses.replace(RECIPE, epochs=1))
    model = small_net()
    for layer in (model[0], model[3].branch[0], model[8]):
        layer.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="each belongs to a layer whose weight is not trained"):
        small_trainer(GradualChannels(), RECIPE, model)
