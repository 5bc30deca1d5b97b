"""ClickTrain's stages, step by step, and its published settings."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from methods import clicktrain_settings as settings
from methods.clicktrain import ClickTrain, compression
from methods.dense import Dense
from methods.skipping import can_skip
from suite.ledger import count_layers
from suite.ops import apply
from suite.parameters import build_model
from tasks.models.clicktrain_vgg import vgg11_click
from tasks.models.resnet9 import resnet9

SHAPE = (3, 32, 32)
# Compression that the ratios of each published list give, by the published measure; which list its file ships is first.
COMPRESSION = {
    "cifar10-resnet32_wide-2": 8.57,
    "cifar10-resnet50_wide-2": 12.11,
    "cifar10-vgg11_click-2": 10.25,
    "cifar10-vgg13_click-2": 8.99,
    "cifar10-vgg16_click-2": 8.79,
    "cifar100-vgg11_click-2": 8.32,
    "cifar100-vgg13_click-1": 4.29,
    "cifar100-vgg16_click-2": 8.79,
    "imagenet-resnet50-1": 2.82,
}
# What their comments claim, as they round it.
CLAIMED = {
    "cifar10-resnet32_wide-1": 13.9,
    "cifar10-resnet50_wide-1": 8.35,
    "cifar10-vgg11_click-1": 8.7,
    "cifar10-vgg11_click-4": 11.5,
    "cifar10-vgg13_click-1": 6.2,
    "cifar100-vgg13_click-3": 8.5,
}


def network(name, task="cifar10"):
    shape = (3, 224, 224) if task == "imagenet" else SHAPE
    model = build_model(name, shape, {"cifar10": 10, "cifar100": 100, "imagenet": 1000}[task])
    layers = {key: layer for key, layer in model.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))}
    return model, layers, shape


def shares_of(text):
    """Network, shape, and the share of each layer's weights that a published list leaves."""
    task, name, _ = text.rsplit("-", 2)
    model, layers, shape = network(name, task)
    shares = {}
    for layer, percent in settings.by_layer(settings.find("", "", text).ratios, layers).items():
        weight = layers[layer].weight
        kernels = weight.shape[0] * weight.shape[1]
        kept = kernels - math.ceil(round(percent * kernels / 100, 6))
        shares[layer] = kept * (4 if weight.shape[2] == 3 else 1) / weight.numel()
    return model, shape, shares


@pytest.mark.parametrize("text", [*COMPRESSION, *CLAIMED])
def test_published_ratios_compress_as_published(text):
    model, _, shares = shares_of(text)
    found = compression(model, shares)
    if text in COMPRESSION:
        assert found == pytest.approx(COMPRESSION[text], abs=0.0051)
    else:
        assert found == pytest.approx(CLAIMED[text], rel=0.01)


@pytest.mark.parametrize(
    ("text", "saved"),
    [("cifar10-resnet32_wide-2", 85.0), ("cifar10-vgg11_click-1", 81.5), ("cifar10-vgg11_click-4", 85.3)],
)
def test_published_savings_are_those_of_masked_inference(text, saved):
    model, shape, shares = shares_of(text)
    costs = count_layers(model, shape)
    left = sum(cost.macs * shares.get(name, 1.0) for name, cost in costs.items())
    assert round(100 * (1 - left / sum(cost.macs for cost in costs.values())), 1) == saved


def test_the_paper_s_training_saving_is_that_of_inference_for_the_epochs_after_hard_pruning():
    share = settings.hard_prune_of_the_paper("cifar10", "resnet32_wide", 8.6)
    assert share == 98 / 190
    assert 85.1 * (1 - share) == pytest.approx(41.3, abs=0.15)  # published


def test_settings_are_those_of_the_configuration():
    found = settings.find("cifar10", "vgg16_click", "published")
    assert (found.pool, found.coefficient) == (12, 1.5e-4)
    assert (found.choose, found.hard_prune) == (150 / 190, 163 / 190)
    assert list(found.ratios) == [35, 45, 55, 55, 55, 65, 65, 65, 75, 80, 85, 85]
    assert not settings.find("cifar10", "vgg16_click", "solved").ratios
    assert not settings.find("cifar10", "resnet9", "published").ratios
    assert list(settings.find("", "", "cifar10-vgg11_click-1").ratios) == [45, 55, 55, 65, 65, 85, 85]
    assert settings.find("imagenet", "resnet50", "published").choose == 35 / 95
    assert settings.hard_prune_of_the_paper("cifar10", "vgg11_click", 11.0) == 94 / 190
    assert settings.hard_prune_of_the_paper("imagenet", "resnet50", 4.0) == 40 / 90
    assert settings.hard_prune_of_the_paper("imagenet", "resnet18", 4.1) == 95 / 190


@pytest.mark.parametrize(
    ("task", "name", "compressed"),
    [
        ("imagenet", "resnet18", 4.1), ("imagenet", "resnet101", 4.2), ("imagenet", "vgg16", 6.6),
        ("cifar100", "resnet32_wide", 8.3), ("cifar10", "resnet9", 8.0),
    ],
)  # fmt: skip
def test_without_a_list_the_ratios_are_solved_for_the_compression_of_the_tables(task, name, compressed):
    assert settings.compression_of_the_paper(task, name) == compressed
    found = settings.find(task, name, "published")
    assert not found.ratios
    if task == "imagenet":  # stages and coefficient of the configuration that there is
        assert (found.choose, found.hard_prune, found.coefficient) == (35 / 95, 78 / 95, 2.5e-4)
        return
    method = ClickTrain()
    apply(build_model(f"{name}[width=0.125]", SHAPE, 10), method, input_shape=SHAPE, num_classes=10, epochs=10,
          batch_size=4, task=task, network=name)  # fmt: skip
    (percent,) = set(method._percent.values())
    assert 4 / 9 * (1 - percent / 100) == pytest.approx(1 / compressed)


def test_every_list_fits_its_network():
    for text in settings.list_names():
        task, name, _ = text.rsplit("-", 2)
        _, layers, _ = network(name, task)
        assert settings.by_layer(settings.find("", "", text).ratios, layers)


def test_blocks_have_the_ratio_of_their_stage_and_shortcuts_none():
    _, layers, _ = network("resnet50_wide")
    found = settings.by_layer([[65, 65, 75], [75, 75, 80, 80], [80, 85, 85, 90, 90, 90], [90, 90, 90]], layers)
    assert found["layer1.2.branch.conv1"] == 75
    assert found["layer3.1.branch.conv2"] == 85
    assert len(found) == 16 * 3
    assert not any("downsample" in name or name in ("conv1", "fc") for name in found)


@pytest.mark.parametrize(
    ("ratios", "name", "message"),
    [
        ([35, 45], "vgg11_click", "a list of 2 ratios does not fit a network of 8 convolutions"),
        ([[55, 55, 55, 55]], "resnet32_wide", "a block 3 in stage 1, the network has none"),
        ([[55, 55, 55]], "resnet32_wide", "no ratio for 'layer2.0.branch.conv1'"),
    ],
)
def test_a_list_of_another_network_is_refused(ratios, name, message):
    with pytest.raises(ValueError, match=message):
        settings.by_layer(ratios, network(name)[1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ratios": "cifar10-vgg11_click-9"}, "did you mean 'cifar10-vgg11_click-"),
        ({"compression": 2.25}, "compression is 2.25; patterns alone compress 2.25 times"),
        ({"hard_prune": 1.0}, "hard_prune is 1.0; a share"),
        ({"warmup": -0.1}, "warmup is -0.1; a share"),
        ({"coefficient": -1.0}, "coefficient is -1.0"),
        ({"batches": 0}, "batches is 0"),
        ({"warmup": 0.9, "hard_prune": 0.2}, "warmup is 0.9 and hard_prune 0.2; patterns are chosen before"),
        ({"ratios": "cifar10-vgg11_click-1", "compression": 9.0}, "is a list, which compresses as it does"),
        ({"mixup": -0.3}, "mixup is -0.3"),
        ({"pool": 5}, "pool is '5'; known: published, 4, 8, 12, dynamic"),
    ],
)
def test_what_cannot_be_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        ClickTrain(**given)


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
        (plain(), {"compression": 1e9}, r"'1': 100 % of its kernels leave the layer none; compress less"),
        (plain(), {"compression": 4.0, "balance": "filter", "ratios": "solved"}, None),
        (plain(), {"compression": 20.0, "balance": "filter"}, "'1': 88.75 % of its kernels leave a filter none"),
        (plain(frozen=True), {}, "'1' is not trained; without gradients"),
        (Branching(follows=True), {}, "'unused' is not used by the model's forward"),
        (Branching(follows=False), {}, "the model cannot be followed: nothing tells which layer is the first"),
    ],
)
def test_layers_that_cannot_be_pruned_are_named_before_the_warm_up(model, given, message):
    def begin():
        apply(model, ClickTrain(**given), input_shape=SHAPE, num_classes=10, epochs=4, batch_size=4)

    if message is None:
        return begin()
    with pytest.raises(ValueError, match=message):
        begin()


def test_a_list_does_not_reach_into_grouped_convolutions(monkeypatch):
    monkeypatch.setattr("methods.clicktrain_settings.by_layer", lambda ratios, layers: {"1": 50.0, "2": 50.0})
    method = ClickTrain(ratios="cifar10-vgg11_click-1")
    with pytest.raises(ValueError, match="'1' is a grouped convolution"):
        apply(plain(groups=2), method, input_shape=SHAPE, num_classes=10, epochs=4, batch_size=4)


def test_a_batch_that_never_comes_is_not_waited_for():
    given = {"input_shape": SHAPE, "num_classes": 10, "epochs": 4, "batch_size": 8, "train_images": 80}
    apply(plain(), ClickTrain(batches=10), **given)
    with pytest.raises(ValueError, match="batches is 11; the epoch that decides has 10"):
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


class Run:
    """A short training: four epochs of three steps; warm-up, lasso, and two epochs masked."""

    def __init__(self, method, model=None, task="", network="", momentum=0.9):
        torch.manual_seed(0)
        self.method = method
        self.model = resnet9(width=1 / 8) if model is None else model
        self.hooks = apply(
            self.model, method, input_shape=SHAPE, num_classes=10, epochs=4, batch_size=8, task=task, network=network
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=momentum, weight_decay=5e-4)
        self.hooks.attach(self.optimizer)
        self.model.train()

    def weights(self):
        return {name: self.hooks.ctx.layers[name].weight for name in self.method._percent}

    def step(self, seed):
        generator = torch.Generator().manual_seed(seed)
        images, labels = torch.randn(8, *SHAPE, generator=generator), torch.randint(10, (8,), generator=generator)
        images, labels = self.hooks.transform_batch(images, labels)
        loss = F.cross_entropy(self.model(images), labels)
        self.hooks.add_regularization(loss).backward()
        self.gradients = {name: weight.grad.clone() for name, weight in self.weights().items()}
        self.before = {name: weight.detach().clone() for name, weight in self.weights().items()}
        self.hooks.optimizer_step()
        self.optimizer.zero_grad()
        return labels

    def epochs(self, count, each=lambda epoch, step: None):
        for _ in range(count):
            epoch = self.hooks.ctx.epochs_done
            for step in range(3):
                self.step(10 * epoch + step)
                each(epoch, step)
            self.hooks.end_epoch()


def stages(**given):
    fixed = {"warmup": 0.25, "hard_prune": 0.5, "mixup": 0.0, "coefficient": 1e-2, "backend": "masked"}
    return ClickTrain(**{**fixed, **given})


def test_the_first_batch_after_the_warm_up_decides_alone():
    run = Run(stages())
    run.epochs(1)
    assert run.method.record(run.hooks.ctx)["stage"] == "warm-up"
    run.step(10)
    chosen = {name: numbers.clone() for name, numbers in run.method._patterns.items()}
    threes = [name for name, layer in run.hooks.ctx.layers.items() if layer.weight.shape[2:] == (3, 3)]
    assert [*chosen] == threes[1:]
    for name, numbers in chosen.items():
        saliency = (run.gradients[name] * run.before[name]).square()
        worth = torch.stack(
            [saliency[:, :, 1:, 1:], saliency[:, :, 1:, :2], saliency[:, :, :2, 1:], saliency[:, :, :2, :2]]
        )
        assert torch.equal(worth.sum((3, 4)).argmax(0), numbers)
        gone = run.method._dropped[name].kernels
        assert gone.sum() == math.ceil(0.71875 * gone.numel())
        importance = saliency.sum((2, 3))
        assert importance[gone].max() <= importance[~gone].min()
    run.step(11)
    run.step(12)
    run.hooks.end_epoch()
    run.epochs(2)
    assert all(torch.equal(chosen[name], numbers) for name, numbers in run.method._patterns.items())


def test_saliencies_of_several_batches_are_averaged():
    run = Run(stages(batches=2))
    run.epochs(1)
    run.step(10)
    first = {name: (run.gradients[name] * run.before[name]).square() for name in run.gradients}
    assert not run.method._patterns
    run.step(11)
    name = next(iter(first))
    both = first[name] + (run.gradients[name] * run.before[name]).square()
    gone = run.method._dropped[name].kernels
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
        dropped = run.method._dropped[name]
        by_hand += (weight.square().mul(dropped.off).sum((2, 3)) + 1e-8).sqrt().sum().item()
        by_hand += (weight.square().sum((2, 3)) * dropped.kernels + 1e-8).sqrt().sum().item()
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
        assert len(run.method._pool) == size


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
    assert whole._patterns
    for name, numbers in whole._patterns.items():
        assert torch.equal(numbers, again._patterns[name])
        assert torch.equal(whole._dropped[name].kernels, again._dropped[name].kernels)


def test_what_the_method_spends_is_counted_in_its_stage():
    run = Run(stages())
    name = "down.conv" if "down.conv" in run.weights() else next(iter(run.weights()))
    weight = run.weights()[name]
    spent = []
    run.epochs(4, each=lambda epoch, step: spent.append(run.method.overhead(name, 8)))
    lasso = 8 * weight.numel() + 3 * 2 * weight.shape[0] * weight.shape[1]
    assert spent == [0.0] * 4 + [lasso] * 2 + [weight.numel()] * 6
    assert run.method.overhead("nobody", 8) == 0.0


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
            dropped = run.method._dropped[name]
            stays = dropped.kept(weight.detach()).bool()
            assert not weight[~stays].any()
            assert weight[stays].all()
            held.append(bool(run.optimizer.state[weight]["momentum_buffer"][~stays].any()))
        steps = run.hooks.ctx.step
        share = 4 / 9 * (1 - math.ceil(0.71875 * stays.shape[0] * stays.shape[1]) / stays.shape[0] / stays.shape[1])
        assert run.method.density(name, steps) == pytest.approx((share,) * 3)

    run.epochs(4, look)
    assert any(held) is not mask_momentum
    first_masked = 6  # the step whose update is the first to be masked; its own products were dense
    assert run.method.density(name := next(iter(run.weights())), first_masked) == (1, 1, 1)
    assert run.method.density(name, first_masked + 1).forward < 0.14
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
            assert name in run.method._patterns
        else:
            assert name not in run.method._patterns
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


def test_the_paper_masks_earlier_than_the_configuration():
    model, given = vgg11_click(), {"input_shape": SHAPE, "num_classes": 10, "batch_size": 4}
    for schedule, epoch in (("config", 143), ("paper", 94)):  # of Fig. 11 the row with the nearest compression, 11.5
        method = ClickTrain(schedule=schedule)
        apply(model, method, task="cifar10", network="vgg11_click", epochs=190, **given)
        assert (method.choose_epoch, method.hard_prune_epoch) == (65, epoch)


def test_a_network_without_3x3_convolutions_is_refused():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
    with pytest.raises(ValueError, match="no 3x3 convolution behind its first layer"):
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
            numbers = run.method._patterns[name]
            assert torch.equal(numbers, numbers[:, :1].expand_as(numbers))


@pytest.fixture
def skipping():
    if not can_skip(torch.device("cpu")):
        pytest.skip("no kernels that skip weights")


def test_skipped_weights_change_nothing_but_the_work(skipping):
    masked, compact = Run(stages()), Run(stages(backend="compact"))
    for run in (masked, compact):
        run.epochs(3)
    for name, weight in masked.weights().items():
        other = compact.weights()[name]
        assert torch.equal(weight == 0, other == 0)
        torch.testing.assert_close(weight, other, rtol=1e-3, atol=1e-4)
        layer = compact.hooks.ctx.layers[name]
        share = float((other != 0).float().mean())
        assert layer.op_plan.backend.executed("forward", None, weight, layer.geometry) == pytest.approx(share)
        assert layer.meter.take() == pytest.approx((share,) * 3, rel=0.2)  # the first masked step's products were dense
        assert masked.hooks.ctx.layers[name].op_plan.empty
    compact.hooks.finish()
    assert all(layer.op_plan.empty for layer in compact.hooks.ctx.layers.values())


def test_auto_takes_who_was_measured_to_be_fastest(skipping, monkeypatch):
    asked = []

    def fastest(backends, kept, layer, geometry, images, size, dtype):
        asked.append((tuple(kept.shape), images, size))
        assert kept.float().mean() == pytest.approx(0.125, rel=0.05)
        assert [*backends] == ["masked", "compact"]
        return "compact" if size == (16, 16) else "masked"

    monkeypatch.setattr("methods.clicktrain.fastest", fastest)
    run = Run(stages(backend="auto"))
    run.epochs(1)
    assert len(asked) == len(set(asked))  # once for all layers of a shape
    assert all(images == 8 for _, images, _ in asked)
    sizes = run.hooks.ctx.spaces.input_sizes
    expected = {name: "compact" if sizes[name] == (16, 16) else "masked" for name in run.method._percent}
    assert set(expected.values()) == {"compact", "masked"}
    assert run.method.record(run.hooks.ctx)["backends"] == expected
    count = len(asked)
    run.epochs(2)
    assert len(asked) == count
    for name, chosen in expected.items():
        assert (run.hooks.ctx.layers[name].op_plan.backend is not None) is (chosen == "compact")
    resumed = stages(backend="auto")
    resumed.setup(run.hooks.ctx)
    resumed.load_state_dict(run.method.state_dict())
    resumed.on_epoch_end(run.hooks.ctx)
    assert len(asked) == count  # what was decided is taken from the checkpoint
    name = next(name for name, chosen in expected.items() if chosen == "compact")
    assert resumed.plan(name, run.hooks.ctx.layers[name]).backend is not None


def test_a_trial_does_not_go_on_without_the_kernels_that_it_took(skipping, monkeypatch):
    run = Run(stages(backend="compact"))
    run.epochs(3)
    again = stages(backend="auto")
    monkeypatch.setattr("methods.clicktrain.can_skip", lambda device: False)
    again.setup(run.hooks.ctx)
    with pytest.raises(ValueError, match="checkpoint takes kernels that skip weights, which are not to be had here"):
        again.load_state_dict(run.method.state_dict())


def test_the_warm_up_is_dense_training_with_dropout_too(skipping):
    """Dropout draws from torch's own generator, which nothing that is measured may touch."""

    def states(method):
        torch.manual_seed(0)
        run = Run(method, vgg11_click(width=1 / 16))
        run.weights = dict
        run.epochs(2)
        return run.model.state_dict()

    dense = states(Dense())
    ours = states(stages(backend="auto", warmup=0.5))
    assert all(torch.equal(tensor, ours[name]) for name, tensor in dense.items())


def test_measuring_changes_no_draw_of_the_training(skipping):
    run = Run(stages(backend="auto"))
    before = torch.get_rng_state()
    run.method.on_epoch_end(run.hooks.ctx)
    assert run.method.record(run.hooks.ctx)["backends"]
    assert torch.equal(torch.get_rng_state(), before)


def test_filters_of_one_pattern_are_multiplied_as_blocks(skipping):
    masked, blocks = (Run(stages(scope="filter", backend=backend)) for backend in ("masked", "blocks"))
    for run in (masked, blocks):
        run.epochs(3)
    for name, weight in masked.weights().items():
        other = blocks.weights()[name]
        assert torch.equal(weight == 0, other == 0)
        torch.testing.assert_close(weight, other, rtol=1e-3, atol=1e-4)
        layer = blocks.hooks.ctx.layers[name]
        assert layer.op_plan.backend.name == "blocks"
        assert layer.op_plan.backend.executed("forward", None, weight, layer.geometry) == 4 / 9
    assert blocks.method.record(blocks.hooks.ctx)["backends"] == dict.fromkeys(blocks.weights(), "blocks")


def test_auto_weighs_blocks_too_where_filters_have_one_pattern(skipping, monkeypatch):
    asked = []

    def fastest(backends, kept, layer, *rest):
        asked.append([*backends])
        backends["blocks"].forward(torch.zeros(1, kept.shape[1], 4, 4), layer.weight, None, layer.geometry)
        return "blocks"

    monkeypatch.setattr("methods.clicktrain.fastest", fastest)
    run = Run(stages(scope="filter", backend="auto"))
    run.epochs(3)
    assert asked
    assert all(names == ["masked", "compact", "blocks"] for names in asked)
    assert all(run.hooks.ctx.layers[name].op_plan.backend.name == "blocks" for name in run.weights())


def test_1x1_convolutions_are_never_blocks_and_other_pools_have_none(skipping):
    model = network("resnet50_wide[width=0.125]")[0]
    run = Run(stages(scope="filter", backend="blocks", warmup=0.25, hard_prune=0.25, pool=4), model, "cifar10",
              "resnet50_wide")  # fmt: skip
    run.epochs(2)
    chosen = run.method.record(run.hooks.ctx)["backends"]
    for name, weight in run.weights().items():
        assert chosen[name] == ("blocks" if weight.shape[2] == 3 else "masked")
    other = Run(stages(scope="filter", backend="auto", pool=8))
    other.epochs(3)
    assert "blocks" not in other.method.record(other.hooks.ctx)["backends"].values()


def test_what_is_timed_is_what_will_be_multiplied(skipping, monkeypatch):
    """Patterns of the method's own pool, a micro-batch, the padded size, and each share of kernels apart."""
    asked = {}

    def fastest(backends, kept, layer, geometry, images, size, dtype):
        asked[layer.name] = (kept, images, size)
        return "masked"

    monkeypatch.setattr("methods.clicktrain.fastest", fastest)
    monkeypatch.setattr(
        "methods.clicktrain_settings.by_layer", lambda ratios, layers: {"1": 50.0, "2": 75.0, "3": 75.0}
    )
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10),
    )  # fmt: skip
    method = stages(pool=12, backend="auto", ratios="cifar10-vgg11_click-1")
    hooks = apply(model, method, input_shape=(3, 8, 8), num_classes=10, epochs=4, batch_size=12, micro_batches=3)
    method.on_epoch_end(hooks.ctx)
    assert {name: (images, size) for name, (_, images, size) in asked.items()} == {
        "1": (4, (8, 8)), "2": (4, (8, 8)), "3": (4, (10, 10)),
    }  # fmt: skip
    assert [int(kept.sum()) for kept, _, _ in asked.values()] == [4 * 8, 4 * 4, 4 * 4]
    patterns = {tuple(kernel.flatten().tolist()) for kept, _, _ in asked.values() for kernel in kept.flatten(0, 1)}
    assert len(patterns - {(False,) * 9}) > 4


def test_a_measurement_is_of_masked_operands_all_three_products_and_warm(monkeypatch):
    import methods.race as race
    from suite.backends import TorchBackend
    from suite.ops import convert

    class Recording(TorchBackend):
        def __init__(self):
            self.seen = []

        def forward(self, activation, weight, bias, geometry):
            self.seen.append(("forward", activation.dtype, weight.clone()))
            return super().forward(activation, weight, bias, geometry)

        def dgrad(self, grad, weight, activation, geometry):
            self.seen.append(("dgrad", grad.dtype, weight.clone()))
            return super().dgrad(grad, weight, activation, geometry)

        def wgrad(self, grad, activation, weight, geometry, with_bias):
            self.seen.append(("wgrad", grad.dtype, weight.clone()))
            return super().wgrad(grad, activation, weight, geometry, with_bias)

    (planned,) = convert(nn.Conv2d(3, 4, 3, padding=1, bias=False)).values()
    kept = torch.rand(4, 3, 3, 3) > 0.5
    backend, timed = Recording(), []
    seconds = race._seconds
    monkeypatch.setattr(race, "_seconds", lambda step, device: timed.append(len(backend.seen)) or seconds(step, device))
    race.fastest({"one": backend}, kept, planned, planned.geometry, 2, (5, 6), torch.bfloat16)
    assert timed[0] == 3  # all three ran once before the clock
    assert [product for product, _, _ in backend.seen] == ["forward", "dgrad", "wgrad"] * (race.ROUNDS + 1)
    assert all(dtype == torch.bfloat16 for _, dtype, _ in backend.seen)
    assert not any(weight[~kept].any() for _, _, weight in backend.seen)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scope": "kernel"}, "backend=blocks: its filters keep one pattern each, which is scope=filter"),
        ({"scope": "filter", "pool": 8}, "backend=blocks: patterns are the four 2x2 blocks, which is pool=4"),
    ],
)
def test_blocks_say_what_they_need(given, message):
    with pytest.raises(ValueError, match=message):
        Run(stages(backend="blocks", **given))


def test_the_backend_with_the_least_median_time_wins(monkeypatch):
    import methods.race as race
    from suite.backends import TORCH
    from suite.ops import convert

    layer = nn.Conv2d(8, 8, 3, padding=1, bias=False)
    (planned,) = convert(layer).values()
    kept = torch.ones(8, 8, 3, 3, dtype=torch.bool)
    for rounds, expected in (
        ([[1.0, 2.0, 9.0], [1.0, 2.0, 0.1], [8.0, 2.0, 9.0]], "a"),
        ([[3.0, 2.0, 9.0], [3.0, 2.0, 0.1], [8.0, 2.0, 9.0]], "b"),
        ([[1.0, 1.0, 1.0]] * 3, "a"),
    ):
        clock = iter([seconds for one in rounds for seconds in one])
        monkeypatch.setattr(race, "_seconds", lambda step, device, clock=clock: next(clock))
        given = (kept, planned, planned.geometry, 4, (8, 8), torch.float32)
        assert race.fastest(dict.fromkeys("abc", TORCH), *given) == expected


def test_compact_says_where_it_cannot_be_had(monkeypatch):
    monkeypatch.setattr("methods.clicktrain.can_skip", lambda device: False)
    with pytest.raises(ValueError, match=r"no kernels that skip weights on cpu here \(.*\); take auto"):
        Run(stages(backend="compact"))
    run = Run(stages(backend="auto"))
    run.epochs(4)
    assert set(run.method.record(run.hooks.ctx)["backends"].values()) == {"masked"}
