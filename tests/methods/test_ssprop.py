"""ssProp: which channels are kept, what is computed from them, in which epochs and layers."""

import copy
import dataclasses
import pickle
import random

import pytest
import torch
import torch.nn.functional as F
from small_training import CLASSES, RECIPE, SHAPE, assert_it_resumes, fitted, small_net, small_trainer
from torch import nn

from methods import ssprop
from methods.backends.autotune import Fastest, Timing
from methods.backends.layer_choices import LayerChoices, Shape
from methods.ssprop import COMPACT, DENSE, KeepChannels, SSProp
from suite.method import Compact, Density, Geometry, Site
from suite.ops import apply, convert
from tasks.models.transformers.vision_transformer import EncoderBlock

SITE = Site("layer", "grad_shared", 0, 0, 0)
ALWAYS = {"backend": "compact", "schedule": "constant"}


def planned(model, method, shape=SHAPE, **more):
    given = {"num_classes": CLASSES, "epochs": 4, "batch_size": 4, "seed": 7} | more
    return apply(model, method, input_shape=shape, **given)


def passed(layer, inputs, grad):
    """Return the output of a layer, and the gradients of weight, bias and input."""
    layer.zero_grad()
    inputs = inputs.detach().requires_grad_()
    out = layer(inputs)
    out.backward(grad)
    return out, layer.weight.grad, None if layer.bias is None else layer.bias.grad, inputs.grad


def test_gradients_by_hand():
    """A 1x1 convolution of one pixel and one image, with four channels of which the second and the last are kept."""
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Conv2d(2, 4, 1), nn.Flatten(), nn.Linear(4, CLASSES))
    planned(model, SSProp(keep=0.5, **ALWAYS), (3, 1, 1))
    layer = model[1]
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])[..., None, None])
    inputs, grad = torch.tensor([10.0, 20.0]).view(1, 2, 1, 1), torch.tensor([1.0, -3.0, 2.0, 4.0]).view(1, 4, 1, 1)
    _, of_weight, of_bias, of_input = passed(layer, inputs, grad)
    assert of_weight.flatten(1).tolist() == [[0, 0], [-30, -60], [0, 0], [40, 80]]
    assert of_bias.tolist() == [0, -3, 0, 4]
    assert of_input.flatten().tolist() == [-3 * 3 + 4 * 7, -3 * 4 + 4 * 8]


def test_the_mean_magnitude_over_images_and_positions_decides():
    grad = torch.zeros(2, 4, 1, 2)
    grad[0, 0, 0, 0] = 9.0  # the largest single value, with a sum of 9
    grad[:, 1] = -3.0  # 12
    grad[0, 2], grad[1, 2] = 100.0, -100.0  # 400, though they add up to 0
    grad[:, 3] = 2.5  # 10
    kept = KeepChannels(2, "magnitude")(grad, SITE)
    assert kept.kept.tolist() == [1, 2]
    assert torch.equal(kept.values, grad[:, [1, 2]])
    rows = KeepChannels(1, "magnitude")(grad[:, :, 0, 0], SITE)
    assert rows.kept.tolist() == [2]


def test_every_count_is_that_of_the_published_code():
    for keep in (0.05, 0.2, 0.29, 0.5, 0.6, 0.7, 1.0):
        for channels in range(1, 130):
            assert SSProp(keep=keep).count(channels) == max(int(keep * channels), 1)
    counts = [SSProp(keep=0.2, round_to=8).count(channels) for channels in (4, 24, 40, 41, 64, 128)]
    assert counts == [4, 8, 8, 8, 16, 32]


def published(layer, inputs, grad, count):
    """The gradients of autograd, from an output gradient whose channels are masked one by one."""
    scores = [
        (sum(abs(value) for value in grad[:, channel].flatten().tolist()), channel)
        for channel in range(len(layer.weight))
    ]
    kept = {channel for _, channel in sorted(scores)[-count:]}
    mask = torch.tensor([float(channel in kept) for channel in range(len(layer.weight))], dtype=grad.dtype)
    return passed(layer, inputs, grad * mask.view(1, -1, *[1] * (grad.ndim - 2)))


def test_gradients_are_those_of_autograd_with_the_masked_gradient():
    """200 random layers, in both memory formats, in float64."""
    rng = random.Random(0)
    for case in range(200):
        torch.manual_seed(case)
        channels, outputs, kernel = rng.randint(1, 6), rng.randint(2, 9), rng.choice((1, 3))
        bias, keep, size = rng.random() < 0.5, rng.uniform(0.05, 1), rng.randint(3, 6)
        if rng.random() < 0.8:
            geometry = {
                "stride": rng.randint(1, 2),
                "padding": rng.randint(0, 2),
                "dilation": rng.randint(1, kernel // 2 + 1),
            }
            if size + 2 * geometry["padding"] <= geometry["dilation"] * (kernel - 1):
                geometry["padding"] = 2
            layer = nn.Conv2d(channels, outputs, kernel, bias=bias, **geometry)
            inputs = torch.randn(rng.randint(1, 3), channels, size, size, dtype=torch.float64)
        else:
            layer = nn.Linear(channels, outputs, bias=bias)
            inputs = torch.randn(rng.randint(1, 3), rng.randint(1, 4), channels, dtype=torch.float64)
        layer.double()
        if rng.random() < 0.5 and inputs.ndim == 4:
            layer, inputs = (
                layer.to(memory_format=torch.channels_last),
                inputs.contiguous(memory_format=torch.channels_last),
            )
        twin, method = copy.deepcopy(layer), SSProp(keep=keep, layers="all", **ALWAYS)
        model = nn.Sequential(nn.Identity(), layer)
        convert_alone(model, method)
        grad = torch.randn_like(layer(inputs))
        rows = grad if grad.ndim == 4 else grad.flatten(0, 1)
        count = max(int(keep * outputs), 1)
        expected = published(twin, inputs if grad.ndim == 4 else inputs.flatten(0, 1), rows, count)
        for found, wanted in zip(passed(layer, inputs, grad), expected, strict=True):
            if wanted is None:
                assert found is None
            else:
                torch.testing.assert_close(found, wanted.view_as(found), rtol=1e-10, atol=1e-12, msg=str(case))


def convert_alone(model, method):
    """Plan the layers of a model without tracing it."""
    convert(model)
    layer = model[1]
    method._sparse, method._channels = True, {"1": len(layer.weight)}
    method._choices = LayerChoices(COMPACT)
    method._choices.chosen = {"1": COMPACT}
    layer.op_plan = method.plan("1", layer)


def test_random_channels_follow_the_site_and_are_equally_frequent():
    grad = torch.randn(2, 10, 3, 3)
    rule = KeepChannels(3, "random")
    assert pickle.loads(pickle.dumps(rule)) == copy.deepcopy(rule) == rule
    counts = torch.zeros(10)
    for step in range(300):
        site = dataclasses.replace(SITE, step=step)
        kept = rule(grad, site)
        assert isinstance(kept, Compact)
        assert len(kept.kept) == len(kept.kept.unique()) == 3
        assert torch.equal(kept.values, grad[:, kept.kept])  # not divided by the share
        assert torch.equal(kept.kept, rule(-grad, site).kept)
        counts[kept.kept] += 1
    assert (counts - 90).abs().max() < 6 * (300 * 0.3 * 0.7) ** 0.5
    drawn = {
        tuple(rule(grad, dataclasses.replace(SITE, **{field: 1})).kept.tolist())
        for field in ("step", "seed", "micro_batch_index")
    }
    assert len(drawn) == 3


def test_kept_values_have_the_memory_format_of_the_gradient():
    for layout in (torch.channels_last, torch.contiguous_format):
        grad = torch.randn(2, 8, 5, 5).contiguous(memory_format=layout)
        assert KeepChannels(3, "magnitude")(grad, SITE).values.is_contiguous(memory_format=layout)


SCHEDULES = {
    "interleave": [0, 1, 0, 1, 0, 1, 0, 1, 0, 1],
    "dense_sparse_dense": [0, 0, 0, 1, 1, 1, 1, 1, 0, 0],
    "constant": [1] * 10,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_epochs_are_sparse_by_the_schedule(schedule):
    method = SSProp(schedule=schedule)
    assert [method.is_sparse(epoch, 10) for epoch in range(10)] == SCHEDULES[schedule]
    narrow = SSProp(schedule="dense_sparse_dense", start=0.0, end=0.5)
    assert [narrow.is_sparse(epoch, 4) for epoch in range(4)] == [1, 1, 0, 0]


def test_a_training_alternates_and_counts_what_it_computes():
    recipe = dataclasses.replace(RECIPE, epochs=4)
    trainer, records = fitted(SSProp(keep=0.25, backend="compact"), recipe)
    executed = [record["step_flops"]["executed"] / record["step_flops"]["dense"] for record in records]
    assert executed[0] == executed[2] == 1.0
    assert executed[1] == executed[3] < 0.6
    assert all(record["step_flops"]["executed"] == record["step_flops"]["effective"] for record in records)
    operations = [record["step_overhead"] for record in records]
    assert operations[0] == 0.0
    assert operations[1] == 2 * 16 * (4 * 8 * 64)  # 16 images, and four layers with 8 channels of 64 positions
    assert all(layer.op_plan.empty for layer in trainer.ctx.layers.values())  # at the end


def test_every_micro_batch_keeps_its_own_channels():
    """Their gradients are added, as those of several ranks are."""
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Conv2d(2, 4, 1), nn.Flatten(), nn.Linear(4, CLASSES))
    hooks = planned(model, SSProp(keep=0.25, **ALWAYS), (3, 1, 1), micro_batches=2)
    model.zero_grad()
    for index, channel in enumerate((1, 3)):
        hooks.begin_micro_batch(index, 2)
        grad = torch.ones(1, 4, 1, 1)
        grad[0, channel] = 5.0
        model[1](torch.ones(1, 2, 1, 1)).backward(grad)
    assert model[1].weight.grad.flatten(1).tolist() == [[0, 0], [5, 5], [0, 0], [5, 5]]


@pytest.mark.parametrize("parameters", [{}, {"mode": "random", "schedule": "dense_sparse_dense"}], ids=str)
def test_a_resumed_training_ends_with_equal_bits(parameters):
    assert_it_resumes(lambda **callbacks: small_trainer(SSProp(backend="compact", **parameters), **callbacks))


def pruned(hooks):
    return [name for name, layer in hooks.ctx.layers.items() if not layer.op_plan.empty]


def test_convolutions_are_pruned_and_by_option_linear_layers_but_never_the_output():
    def net():
        convolutions = (nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 8, 3))
        return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(32, 8), nn.Linear(8, CLASSES))

    assert pruned(planned(net(), SSProp(**ALWAYS))) == ["0", "2"]
    method = SSProp(layers="all", **ALWAYS)
    hooks = planned(net(), method)
    assert pruned(hooks) == ["0", "2", "4"]
    assert [method.density(name, hooks.ctx) for name in ("2", "5")] == [Density(1, 1 / 8, 1 / 8), Density()]
    assert method.overhead("4", 3, hooks.ctx) == 2 * 3 * 8
    assert pruned(planned(net(), SSProp(layers="all", ignore=("2",), **ALWAYS))) == ["0", "4"]
    assert pruned(planned(net(), SSProp(keep=1.0, **ALWAYS))) == []


class Measured:
    """Stands for the measurement: layers of which `prefer` is true are faster."""

    def __init__(self, monkeypatch, prefer):
        self.asked, self._prefer = [], prefer
        monkeypatch.setattr(ssprop, "fastest", self)

    def __call__(self, keep, layer, shape, with_dgrad, hardware_id):
        self.asked.append((layer.name, keep, with_dgrad, shape.images))
        name = COMPACT if self._prefer(layer) else DENSE
        return Fastest(name, {DENSE: Timing(1, 1, 1), COMPACT: Timing(0.5, 0.4, 0.6)}, 15)


@pytest.mark.parametrize("mode", ["magnitude", "random"])
def test_auto_prunes_the_layers_that_were_measured_to_be_faster(monkeypatch, mode):
    measured = Measured(monkeypatch, lambda layer: layer.bias is None)
    method = SSProp(mode=mode, schedule="constant")
    hooks = planned(small_net(), method)
    rule = KeepChannels(1, "magnitude")  # also for the twin
    assert measured.asked == [("0", rule, False, 4), ("3.branch.0", rule, True, 4), ("4", rule, True, 4)]
    assert pruned(hooks) == ["0", "3.branch.0", "3.branch.3"]
    assert method.density("4", hooks.ctx) == Density()
    hooks.ctx.epochs_done = 1
    record = method.record(hooks.ctx)
    assert record["backends"] == {"0": COMPACT, "3.branch.0": COMPACT, "3.branch.3": COMPACT, "4": DENSE}
    assert record["choices"]["4"]["ratios"][COMPACT] == [0.5, 0.4, 0.6]


def test_a_resumed_trial_keeps_its_layers_and_so_does_a_time_pass(monkeypatch):
    measured = Measured(monkeypatch, lambda layer: len(measured.asked) <= 2)
    method = SSProp(schedule="constant")
    first = pruned(planned(small_net(), method))
    again = SSProp(schedule="constant")
    hooks = planned(small_net(), again)
    assert pruned(hooks) != first
    again.load_state_dict(method.state_dict())
    again.choose_again(hooks.ctx)
    hooks._plan_all()
    assert pruned(hooks) == first


def test_a_training_in_which_nothing_is_faster_says_so(monkeypatch, caplog):
    Measured(monkeypatch, lambda layer: False)
    assert pruned(planned(small_net(), SSProp(schedule="constant"))) == []
    assert "in no layer are pruned gradients faster here, so that this training is dense" in caplog.text
    assert SSProp.defaults("digits", "smoke") == {"backend": "compact"}


@pytest.mark.parametrize("with_dgrad", [True, False])
@pytest.mark.parametrize("layer", [nn.Conv2d(4, 10, 3, padding=1), nn.Linear(4, 10, bias=False)])
def test_a_measurement_multiplies_what_a_training_multiplies(monkeypatch, layer, with_dgrad):
    products, asked = [], []

    def choose(question, candidates, prepare, device, hardware_id):
        asked.append((question, candidates))
        for name, step in prepare().items():
            step()
            products.append(name)
        return Fastest(DENSE, {}, 0)

    def noting(product):
        real = getattr(ssprop.TORCH, product)
        return lambda grad, *rest: products.append((product, grad.shape[1])) or real(grad, *rest)

    monkeypatch.setattr(ssprop, "choose", choose)
    for product in ("dgrad", "wgrad"):
        monkeypatch.setattr(ssprop.TORCH, product, noting(product))
    layer.name = "1"
    geometry = Geometry("conv", padding=(1, 1)) if layer.weight.ndim == 4 else Geometry("linear")
    shape = Shape(geometry, 2, (5, 5), torch.float32)
    ssprop.fastest(KeepChannels(2, "magnitude"), layer, shape, with_dgrad, "cpu")
    both = ["dgrad", "wgrad"] if with_dgrad else ["wgrad"]
    assert products == [*((one, 10) for one in both), DENSE, *((one, 2) for one in both), COMPACT]
    ((question, candidates),) = asked
    assert candidates == (DENSE, COMPACT)  # dense is the baseline
    assert (question["kept"], question["data_gradient"], question["with_bias"]) == (
        2,
        with_dgrad,
        layer.bias is not None,
    )


def test_a_network_without_a_layer_to_prune_is_refused():
    linear = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Linear(8, CLASSES))
    line = r"no layer of this model is pruned: it has no Conv2d .*; layers=all prunes its linear layers"
    with pytest.raises(ValueError, match=line):
        planned(copy.deepcopy(linear), SSProp(**ALWAYS))
    with pytest.raises(ValueError, match="no layer of this model is pruned"):
        planned(nn.Sequential(nn.Conv2d(3, CLASSES, 8), nn.Flatten()), SSProp(layers="all", **ALWAYS))
    with pytest.raises(ValueError, match="schedule=interleave has no sparse epoch in a training of 1"):
        planned(small_net(), SSProp(backend="compact"), epochs=1)


class Transformer(nn.Module):
    """One encoder block on four tokens."""

    def __init__(self):
        super().__init__()
        self.patches, self.block, self.head = (
            nn.Conv2d(3, 12, 4, stride=4),
            EncoderBlock(12, 3, 0.0),
            nn.Linear(12, CLASSES),
        )

    def forward(self, images):
        return self.head(self.block(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


def test_a_transformer_is_pruned_in_its_linear_layers_or_refused():
    with pytest.raises(ValueError, match="layers=all prunes its linear layers"):
        planned(Transformer(), SSProp(**ALWAYS))
    model = Transformer()
    hooks = planned(model, SSProp(layers="all", **ALWAYS))
    assert set(pruned(hooks)) == {*hooks.ctx.layers} - {"head"}
    F.cross_entropy(model(torch.randn(4, *SHAPE)), torch.arange(4)).backward()
    gradient = model.block.mlp.expand.weight.grad
    assert int(gradient.any(1).sum()) == int(0.2 * len(gradient))


@pytest.mark.parametrize(
    ("parameters", "line"),
    [
        ({"keep": 0.0}, "keep is 0.0"),
        ({"schedule": "bar"}, "schedule is 'bar'; allowed"),
        ({"start": 0.8}, "start is 0.8; it must be less than end, 0.8"),
        ({"mode": "top"}, "mode is 'top'; allowed: magnitude, random"),
        ({"backend": "masked"}, "backend is 'masked'; allowed: auto, compact"),
    ],
)
def test_wrong_parameters_are_one_line(parameters, line):
    with pytest.raises(ValueError, match=line):
        SSProp(**parameters)


def test_the_record_of_an_epoch_has_the_densities_of_its_own_steps():
    _, records = fitted(SSProp(backend="compact"), dataclasses.replace(RECIPE, epochs=2), small_net())
    first, second = ({min(layer["density"]) for layer in record["layers"].values()} for record in records)
    assert first == {1.0}
    assert min(second) < 1.0
