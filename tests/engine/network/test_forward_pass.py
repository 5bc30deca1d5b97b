"""What happens in a model's forward: masks that it bypasses, and layers that are never called."""

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from small_methods import Nothing
from small_training import SHAPE, small_trainer
from torch import nn

from methods.sdgp import SDGP
from suite.engine.cost.flops import count, count_model
from suite.engine.cost.memory import measure_step
from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.forward_pass import survey
from suite.errors import UsageError
from suite.method import Density, Method, OpPlan
from suite.ops import apply


class Classifier(nn.Module):
    """Four patches of an image, two encoder layers, a head, and a layer that is never called."""

    def __init__(self, **options):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, **options)
        self.head = nn.Linear(16, 4)
        self.never = nn.Linear(16, 16)

    def forward(self, images, padding=None):
        rows = self.patches(images).flatten(2).transpose(1, 2)
        return self.head(self.encoder(rows, src_key_padding_mask=padding)[:, 0])


def every_second(weight, site):
    return weight * (torch.arange(weight.numel()).view_as(weight) % 2)


class Masks(Method):
    """Masks half of each weight in the forward, and remembers the layers that it was given."""

    only: str = ""

    def setup(self, ctx):
        self.in_setup = dict(ctx.layers)

    def plan(self, name, layer):
        return OpPlan(weight_forward=every_second) if self.only in ("", name) else None


class PlansGradients(Method):
    """Changes the data gradient and keeps the forward."""

    def plan(self, name, layer):
        return OpPlan(grad_dgrad=lambda grad, site: 2 * grad)


def hooks_of(model, method=None):
    method = method or Masks()
    return apply(model, method, input_shape=SHAPE, num_classes=4, epochs=1, batch_size=8)


def masked(model, names):
    """Return a copy of a model with its weights masked explicitly."""
    found = copy.deepcopy(model)
    for name in names:
        weight = found.get_submodule(name).weight
        weight.data = every_second(weight.data, None)
    return found.eval()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("padded", [False, True])
def test_masks_reach_the_inference_fast_path_of_encoder_layers(padded):
    torch.manual_seed(0)
    model = Classifier()
    expected = masked(model, ["patches", "head", *(f"encoder.layers.{i}.linear{j}" for i in (0, 1) for j in (1, 2))])
    padding = torch.tensor([[False, False, True, True]]).expand(5, 4) if padded else None
    images = torch.randn(5, *SHAPE)
    hooks = hooks_of(model)
    model.eval()
    with torch.no_grad():
        got = model(images, padding)
        torch.testing.assert_close(got, expected(images, padding), rtol=1e-5, atol=1e-6)
        hooks.finish()
        torch.testing.assert_close(model(images, padding), got, rtol=1e-5, atol=1e-6)
    assert not any(layer._forward_pre_hooks for layer in hooks.planned_layers)  # the fast path is taken again


def test_without_plans_the_fast_path_is_taken(monkeypatch):
    calls = []
    fast = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *given: (calls.append(1), fast(*given))[1])
    model, images = Classifier(), torch.randn(2, *SHAPE)
    hooks_of(model, Nothing())
    with torch.no_grad():
        model.eval()(images)
    assert len(calls) == 2


def test_the_layers_of_the_context_are_the_same_in_setup_as_later_and_the_others_are_named(caplog):
    method = Masks()
    with caplog.at_level(logging.WARNING):
        hooks = hooks_of(Classifier(), method)
    layers = ["patches", *(f"encoder.layers.{i}.linear{j}" for i in (0, 1) for j in (1, 2)), "head"]
    assert list(method.in_setup) == list(hooks.ctx.layers) == layers
    assert all(hooks.ctx.layers[name] is layer for name, layer in method.in_setup.items())
    assert hooks.not_planned["never"] == "the model never calls it"
    assert "NonDynamicallyQuantizableLinear" in hooks.not_planned["encoder.layers.0.self_attn.out_proj"]
    assert "'never' cannot be planned" in caplog.text


class Bypass(nn.Module):
    """A model that calls a linear layer and also reads its weight in the given way."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.flat, self.first = nn.Flatten(), nn.Linear(192, 8)
        self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        if way == "shared":
            self.third = nn.Linear(8, 8)
            self.third.weight = self.second.weight

    def forward(self, images):
        y = self.second(self.first(self.flat(images)))
        if self.way == "function":
            y = F.linear(y, self.second.weight)
        elif self.way == "training" and self.training:
            y = y @ self.second.weight.t()
        elif self.way == "shared":
            y = self.third(y)
        return self.head(y)


@pytest.mark.parametrize(
    ("way", "reader"),
    [("function", "the model's own forward"), ("training", "the model's own forward"), ("shared", "'third'")],
)
def test_a_plan_for_a_layer_whose_weight_is_read_past_it_is_refused_by_name(way, reader):
    with pytest.raises(UsageError, match=f"Masks plans layer 'second'.*{reader}"):
        hooks_of(Bypass(way))
    hooks_of(Bypass(way), Masks(only="first"))
    hooks_of(Bypass(way), Nothing())
    if way == "shared":  # each layer's own gradients are pruned by its own plan
        hooks_of(Bypass(way), PlansGradients())
    else:
        with pytest.raises(UsageError, match="PlansGradients plans layer 'second'"):
            hooks_of(Bypass(way), PlansGradients())


class TrainsMore(nn.Module):
    """An auxiliary head that is used only in training, and a layer that is never called."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.aux, self.never = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, images):
        y = self.norm(self.first(images)).relu()
        if self.training:
            y = y + self.aux(y)
        return self.head(y.mean((2, 3)))


@pytest.mark.parametrize("method", [SDGP(layers="all"), Nothing()])
def test_layers_that_never_run_are_left_out_and_those_of_training_count_for_training(method):
    model = TrainsMore()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    survey(model, SHAPE)
    costs = count(model, SHAPE).layers
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert list(costs) == ["first", "head", "aux"]
    assert costs["aux"].training_only
    assert costs["aux"].macs == 9 * 8 * 8 * 64
    assert count_model(model, SHAPE)["macs"] == costs["first"].macs + costs["head"].macs
    trainer = small_trainer(method, model=model)
    assert list(trainer.ctx.layers) == ["first", "aux", "head"]
    trainer.fit()
    assert trainer.ledger.inference_flops() == 2 * (costs["first"].macs + costs["head"].macs)
    assert trainer.ledger.train_flops["dense"] == 3 * 64 * 2 * sum(
        cost.macs * (2 if name == "first" else 3) for name, cost in costs.items()
    )


@pytest.mark.parametrize(
    "use",
    [
        lambda model: count(model, SHAPE),
        lambda model: find_index_spaces(model, SHAPE),
        lambda model: measure_step(model, SHAPE, torch.float32, 8),
        hooks_of,
    ],
)
def test_a_model_without_parameters_is_refused_in_a_line(use):
    with pytest.raises(UsageError, match=r"the model \(Flatten\) has no parameters"):
        use(nn.Flatten())


def test_density_is_asked_for_with_the_masks_that_the_step_multiplied_with():
    class Hardens(Method):
        """Masks from the second step on; the stated density follows the mask and ignores the step."""

        def setup(self, ctx):
            self.share = 1.0

        def plan(self, name, layer):
            return OpPlan(weight_forward=every_second) if self.share < 1 else None

        def after_optimizer_step(self, ctx):
            self.share = 0.5
            if ctx.step == 0:
                ctx.replan()

        def density(self, name, ctx):
            return Density(self.share, self.share, 1.0)

        def overhead(self, name, samples, ctx):
            return 1.0 / self.share

    seen = []
    trainer = small_trainer(Hardens())
    add_step = trainer.ledger.add_step
    trainer.ledger.add_step = lambda samples: (
        add_step(samples),
        seen.append((trainer.ctx.step, trainer.ledger.step_flops)),
    )
    trainer.fit()
    assert [step for step, _ in seen] == list(range(12))
    assert seen[0][1]["effective"] == seen[0][1]["current"]
    assert all(flops["effective"] < flops["current"] for _, flops in seen[1:])
    assert trainer.ledger._overhead["0"] == 24.0  # the hooks of all steps have run
