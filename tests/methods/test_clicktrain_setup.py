"""What ClickTrain decides before training: the ratios of each layer, its stages, and what it refuses."""

import copy

import pytest
from small_clicktrain import SHAPE, Run, with_pointwise
from torch import nn

from methods.clicktrain import ClickTrain
from methods.clicktrain.settings import compression
from suite.choices import build_model
from suite.ops import apply
from tasks.models.clicktrain.vgg import vgg11_click
from tasks.models.resnet9 import resnet9


def plain(groups=1, frozen=False):
    """Return a network of three convolutions with four channels."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=groups), nn.Conv2d(4, 4, 3, padding=1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10),
    )  # fmt: skip
    model[1].weight.requires_grad_(not frozen)
    return model


class Branching(nn.Module):
    """A network with an unused layer, and with a path that depends on values, so that it cannot be traced."""

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
        (plain(frozen=True), {}, None),
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


def test_frozen_and_ignored_layers_are_left_alone_and_the_others_are_pruned():
    for model, given in ((plain(frozen=True), {}), (plain(), {"ignore": ("1",)})):
        method = ClickTrain(**given)
        apply(model, method, input_shape=SHAPE, num_classes=10, epochs=4, batch_size=4)
        assert set(method._percent) == {"2"}
    frozen = plain().requires_grad_(False)
    with pytest.raises(ValueError, match="this network has no trained 3x3 convolution after its first layer"):
        apply(frozen, ClickTrain(), input_shape=SHAPE, num_classes=10, epochs=4, batch_size=4)


def test_a_published_list_keeps_its_places_if_a_layer_is_ignored():
    model = build_model("vgg11_click[width=0.0625]", SHAPE, 10)
    whole, without = ClickTrain(), ClickTrain(ignore=("features.4",))
    given = {"input_shape": SHAPE, "num_classes": 10, "epochs": 190, "batch_size": 4}
    for method in (whole, without):
        apply(copy.deepcopy(model), method, task="cifar10", network="vgg11_click", **given)
    assert whole._percent.keys() - without._percent.keys() == {"features.4"}
    assert without._percent.items() <= whole._percent.items()


def test_a_list_does_not_reach_into_grouped_convolutions(monkeypatch):
    monkeypatch.setattr("methods.clicktrain.settings.by_layer", lambda ratios, layers: {"1": 50.0, "2": 50.0})
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


def test_kernels_of_1x1_convolutions_go_whole_and_what_is_not_listed_stays(monkeypatch):
    run = Run(ClickTrain(mixup=0.0, ratios="cifar10-resnet50_wide-1", backend="masked"), with_pointwise(monkeypatch))
    assert (run.method.choose_epoch, run.method.hard_prune_epoch) == (1, 3)  # 61 and 141 of 190
    run.epochs(4, steps=1)
    zeros = {name: int((layer.weight == 0).sum()) for name, layer in run.runner.ctx.layers.items()}
    assert zeros == {"0": 0, "1": 32, "2": 32 * 9 + 32 * 5, "3": 0, "6": 0}
    assert [*run.method._masks._patterns] == ["2"]


def test_a_network_takes_the_list_of_its_task_and_a_name_takes_another():
    model = vgg11_click(width=1 / 32)
    run = Run(ClickTrain(), model, task="cifar10", network="vgg11_click")
    assert [*run.method._percent.values()] == [35, 45, 65, 75, 80, 80, 85]
    assert run.method._coefficient == 3.5e-4
    named = Run(ClickTrain(ratios="cifar10-vgg11_click-1", coefficient=1.0), vgg11_click(width=1 / 32))
    assert [*named.method._percent.values()] == [45, 55, 55, 65, 65, 85, 85]
    assert named.method._coefficient == 1.0
    for given in ({"ratios": "solved", "compression": 9.0}, {"compression": 9.0}):
        solved = Run(ClickTrain(**given), vgg11_click(width=1 / 32), "cifar10", "vgg11_click")
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
    model, given = vgg11_click(width=1 / 4), {"input_shape": SHAPE, "num_classes": 10, "batch_size": 4}
    for schedule, epoch in (("config", 143), ("paper", 96)):  # of Fig. 11 the row with the nearest compression
        method = ClickTrain(schedule=schedule)
        apply(copy.deepcopy(model), method, task="cifar10", network="vgg11_click", epochs=190, **given)
        assert (method.choose_epoch, method.hard_prune_epoch) == (65, epoch)


def test_compression_is_of_pruned_layers_where_no_tensor_has_a_convolution_s_name():
    assert compression(plain(), {"1": 0.25, "2": 0.75}) == 2.0
