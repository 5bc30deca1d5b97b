"""SDGP's backends for pruned output gradients: equal products, the choice by measurement, checkpoints and refusals."""

import copy
import dataclasses
import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_subject import small
from small_training import RECIPE, Checkpoints, plain_net, small_net, small_trainer
from torch import nn

import kernels
from methods.backends.autotune import Fastest
from methods.backends.layer_choices import Shape
from methods.gradients import backends as pruned_gradients
from methods.sdgp import SDGP
from suite.engine.training import steps
from suite.engine.training.conformance import CONTRACTS
from suite.method import Compressed, Density, Geometry, Site
from suite.ops import apply, convert

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def choices(monkeypatch, tmp_path):
    """A folder of stored choices for one test."""
    monkeypatch.setenv("PDT_CHOICES", str(tmp_path / "choices"))
    return tmp_path / "choices"


@pytest.fixture
def skipping(monkeypatch):
    """Let the device have kernels that skip; where none are compiled, their definition computes in their place."""
    monkeypatch.setattr("kernels.compressed.dispatch.available", lambda device: device.type == "cpu")


@pytest.fixture
def without(monkeypatch):
    monkeypatch.setattr("kernels.compressed.dispatch.available", lambda device: False)


def planned(model, method, shape, **context):
    return apply(model, method, input_shape=shape, num_classes=10, epochs=2, batch_size=4, seed=7, **context)


def backward(layer, inputs, grad):
    """Return the output and all gradients of a layer."""
    hidden = inputs.clone(memory_format=torch.preserve_format).requires_grad_()
    layer.zero_grad()
    out = layer(hidden)
    out.backward(grad)
    bias = None if layer.bias is None else layer.bias.grad
    return {"out": out.detach(), "dgrad": hidden.grad, "wgrad": layer.weight.grad, "bias": bias}


def agree(found, wanted, dtype, what):
    """Compare with a limit that is relative to the root mean square of the right tensor."""
    if wanted is None or not wanted.numel():
        return
    scale = wanted.double().square().mean().sqrt().item() or 1.0
    limit = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.1}[dtype] * scale
    error = (found.double() - wanted.double()).abs().max().item()
    assert error <= limit, f"{what}: {error} of {scale}"


RULES = st.builds(
    lambda m, share, mode, scope: {"n": max(1, round(share * (m - 1))), "m": m, "mode": mode, "scope": scope},
    st.integers(2, 17),
    st.floats(0, 1),
    st.sampled_from(["random", "magnitude", "rescaled", "unbiased"]),
    st.sampled_from(["sample_channel", "group", "channel"]),
)
CONVOLUTIONS = st.fixed_dictionaries(
    {
        "kernel": st.tuples(st.integers(1, 5), st.integers(1, 4)),
        "stride": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "padding": st.tuples(st.integers(0, 3), st.integers(0, 3)),
        "dilation": st.tuples(st.integers(1, 2), st.integers(1, 2)),
        "groups": st.sampled_from([1, 1, 2, 4]),
        "channels": st.tuples(st.integers(1, 3), st.integers(1, 6)),
        "size": st.tuples(st.integers(9, 12), st.integers(9, 12)),
        "mode": st.sampled_from(["zeros", "zeros", "reflect"]),
        "bias": st.booleans(),
    }
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    given=CONVOLUTIONS,
    rule=RULES,
    products=st.sampled_from(["dgrad", "both"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_skip_equals_masked_and_float64_for_every_geometry(skipping, given, rule, products, dtype, seed):
    torch.manual_seed(seed)
    groups, (inner, outer) = given["groups"], given["channels"]
    inner, outer = 4 * inner * groups, 2 * outer * groups  # SDGP prunes convolutions of more than three channels
    kinds = {name: given[name] for name in ("stride", "padding", "dilation", "groups", "bias")}
    layer = nn.Conv2d(inner, outer, given["kernel"], padding_mode=given["mode"], **kinds).to(dtype)
    inputs = torch.randn(2, inner, *given["size"]).to(dtype).contiguous(memory_format=torch.channels_last)
    compare(layer, inputs, rule, products, dtype)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40)),
    rule=RULES,
    products=st.sampled_from(["dgrad", "both"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    bias=st.booleans(),
)
def test_skip_equals_masked_and_float64_for_linear_layers(skipping, sizes, rule, products, dtype, bias):
    torch.manual_seed(0)
    rows, inner, outer = sizes
    compare(nn.Linear(inner, outer, bias=bias).to(dtype), torch.randn(rows, inner).to(dtype), rule, products, dtype)


def compare(layer, inputs, rule, products, dtype):
    """Compare the layer's products of both backends with each other, and with float64 from the same pruned gradient."""
    found, grads = {}, None
    for backend in ("masked", "skip"):
        method = SDGP(**rule, products=products, backend=backend, layers="all")
        model = nn.Sequential(nn.Flatten() if inputs.ndim == 2 else nn.Identity(), copy.deepcopy(layer))
        hooks = planned(model, method, tuple(inputs.shape[1:]) if inputs.ndim == 4 else (inputs.shape[1], 1, 1))
        if grads is None:
            out = model[1](inputs)
            grads = torch.empty_like(out).copy_(torch.randn(out.shape)).detach()
            model[1].meter.take()
        found[backend] = backward(model[1], inputs, grads)
        executed = model[1].meter.take()
        plan = hooks.ctx.layers["1"].op_plan
        share = method._rule.kept(layer.weight.shape[0]) / layer.weight.shape[0]
        if backend == "masked" or method.n == method.m:
            assert plan.backend is None
            assert executed == Density()
        else:
            assert plan.backend.name == "skip"
            assert executed == Density(1.0, share, share if products == "both" else 1.0)
    # In float64, with the output gradient that both backends prune in the same way.
    wide = nn.Sequential(copy.deepcopy(layer).double())
    convert(wide)
    operand = "grad_shared" if products == "both" else "grad_dgrad"
    pruned = kernels.prune_nm(grads, method._rule, seed=Site("1", operand, 0, 0, 7).key)
    both = products == "both"
    of_data = backward(wide[0], inputs.double(), pruned.double())
    others = of_data if both else backward(wide[0], inputs.double(), grads.double())
    for backend, got in found.items():
        agree(got["dgrad"], of_data["dgrad"], dtype, f"{backend} dgrad")
        agree(got["wgrad"], others["wgrad"], dtype, f"{backend} wgrad")
        agree(got["bias"], others["bias"], dtype, f"{backend} bias")
    assert torch.equal(found["skip"]["out"], found["masked"]["out"])
    if not both:  # what is not pruned is torch's own, bit for bit
        assert torch.equal(found["skip"]["wgrad"], found["masked"]["wgrad"])
        assert found["skip"]["bias"] is None or torch.equal(found["skip"]["bias"], found["masked"]["bias"])


def test_masked_is_what_sdgp_was_before_there_were_backends(skipping):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 12, 3, padding=1))
    hooks = planned(model, SDGP(backend="masked", mode="random"), (8, 6, 6))
    plan = hooks.ctx.layers["0"].op_plan
    assert (plan.backend, plan.grad_shared, plan.grad_wgrad, plan.weight_forward) == (None,) * 4
    grad = torch.randn(2, 12, 6, 6)
    site = Site("0", "grad_dgrad", 3, 0, 7)
    assert torch.equal(plan.grad_dgrad(grad, site), kernels.prune_nm(grad, plan.grad_dgrad.rule, seed=site.key))


@pytest.mark.parametrize("products", ["dgrad", "both"])
def test_a_training_that_skips_on_digits_ends_where_one_with_zeros_does(skipping, tiny_residual, products):
    # The magnitudes that decide what is kept differ by rounding, which can exchange channels; random numbers do not.
    given = {"products": products, "n": 2, "m": 16, "layers": "all", "mode": "random"}
    (masked, wanted, _), (skip, records, _) = (
        small("sdgp", {**given, "backend": name}).undisturbed for name in ("masked", "skip")
    )
    for name, tensor in masked.model.state_dict().items():
        torch.testing.assert_close(skip.model.state_dict()[name], tensor, rtol=1e-3, atol=1e-4, msg=name)
    last, record = wanted[-1], records[-1]
    assert record["train_loss"] == pytest.approx(last["train_loss"], rel=1e-4)
    # What skips executes what it needs, but for the first convolution, which is not pruned and needs no data gradient.
    flops, dense = record["step_flops"], last["step_flops"]
    assert dense["executed"] == dense["current"]
    assert flops["effective"] == dense["effective"] == pytest.approx(flops["executed"], rel=1e-9)
    layers = set(record["layers"]) - {"0"}
    assert record["backends"] == {"0": "torch", **dict.fromkeys(layers, "skip")}
    assert set(last["backends"].values()) == {"torch"}
    assert record["method"] == {"backends": dict.fromkeys(layers, "skip")}


def test_skipping_keeps_every_contract(skipping, tiny_residual):
    checked = small("sdgp", {"backend": "skip", "products": "both", "n": 4, "m": 8, "layers": "all"}, epochs=2)
    for contract in CONTRACTS:
        assert contract(checked)


def test_a_compiled_graph_skips_as_an_eager_step_does(skipping, monkeypatch):
    monkeypatch.setattr(steps, "BACKEND", "aot_eager")
    ends = []
    for execution in ("eager", "compile"):
        method = SDGP(backend="skip", products="both", layers="all")
        recipe = dataclasses.replace(RECIPE, epochs=1, execution=execution)
        trainer = small_trainer(method, recipe, plain_net())
        trainer.fit()
        ends.append(trainer)
    for name, tensor in ends[0].model.state_dict().items():
        torch.testing.assert_close(ends[1].model.state_dict()[name], tensor, rtol=1e-4, atol=1e-5, msg=name)
    assert ends[0].ledger.train_flops == ends[1].ledger.train_flops
    assert ends[1].ledger.train_flops["executed"] < ends[1].ledger.train_flops["current"]


class Chooses:
    """A replacement for `pruned_gradients.fastest` that prefers what a function names."""

    def __init__(self, monkeypatch, prefer):
        self.asked, self._prefer = [], prefer
        monkeypatch.setattr(pruned_gradients, "fastest", self)

    def __call__(self, backends, pruning, layer, shape, hardware_id):
        self.asked.append((layer.name, [*backends], shape, pruning))
        return Fastest(self._prefer(layer), {}, rounds=0)


def test_auto_takes_what_was_measured_to_be_the_fastest(skipping, monkeypatch):
    chooses = Chooses(monkeypatch, lambda layer: "skip" if layer.kernel_size == (3, 3) else "masked")
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1),
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1, bias=False),
    )  # fmt: skip
    method = SDGP(m=8)
    hooks = planned(model, method, (3, 8, 8), micro_batches=2)
    # Layers of one shape are measured once; a micro-batch has two images; other padding is part of the input.
    geometry = Geometry("conv", padding=(1, 1))
    shape = Shape(geometry, 2, (8, 8), torch.float32)
    pointwise = shape._replace(geometry=Geometry("conv"))
    assert [(name, asked) for name, _, asked, _ in chooses.asked] == [
        ("1", shape), ("3", Shape(Geometry("conv"), 2, (10, 10), torch.float32)), ("4", pointwise), ("5", pointwise),
    ]  # fmt: skip
    assert all(names == ["masked", "skip"] and not pruning.both for _, names, _, pruning in chooses.asked)
    plans = {name: layer.op_plan for name, layer in hooks.ctx.layers.items()}
    assert plans.pop("0").empty
    expected = dict.fromkeys("123", "skip") | dict.fromkeys("45", "masked")
    assert {name: plan.backend.name if plan.backend else "masked" for name, plan in plans.items()} == expected
    record = method.record(hooks.ctx)
    assert record["backends"] == {name: one["chosen"] for name, one in record["choices"].items()} == expected
    hooks.ctx.epochs_done = 2
    assert method.record(hooks.ctx) == {"backends": expected}


def test_layers_of_another_memory_layout_are_measured_on_their_own(skipping, monkeypatch):
    chooses = Chooses(monkeypatch, lambda layer: "masked")
    model = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)))
    model[1].to(memory_format=torch.channels_last)
    planned(model, SDGP(), (8, 6, 6))
    assert [name for name, *_ in chooses.asked] == ["0", "1"]


@pytest.mark.parametrize("backend", ["skip", "masked"])
def test_kernels_that_a_trial_needs_are_compiled_in_setup(skipping, monkeypatch, backend):
    called, compress = [], kernels.compress_nm
    monkeypatch.setattr(kernels, "compress_nm", lambda *given, **rest: called.append(1) or compress(*given, **rest))
    planned(nn.Sequential(nn.Conv2d(8, 8, 3)), SDGP(backend=backend), (8, 6, 6))
    assert bool(called) is (backend == "skip")


def test_with_both_products_one_of_them_may_skip(skipping, monkeypatch):
    chooses = Chooses(monkeypatch, lambda layer: "skip_dgrad")
    model = nn.Sequential(nn.Conv2d(8, 16, 3))
    hooks = planned(model, SDGP(products="both"), (8, 6, 6))
    assert [names for _, names, _, _ in chooses.asked] == [["masked", "skip", "skip_dgrad"]]
    layer, grad = model[0], torch.randn(2, 16, 4, 4)
    found = backward(layer, torch.randn(2, 8, 6, 6), grad)
    assert layer.meter.take() == Density(1.0, 0.5, 1.0)
    pruned = layer.op_plan.grad_shared(grad, Site("0", "grad_shared", 0, 0, 7))
    assert isinstance(pruned, Compressed)
    torch.testing.assert_close(found["bias"], pruned.dense().sum((0, 2, 3)))
    assert hooks.method.density("0", hooks.ctx) == Density(1.0, 0.5, 0.5)


def test_layers_that_kernels_cannot_skip_are_torchs(skipping, monkeypatch):
    Chooses(monkeypatch, lambda layer: "skip")

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.three = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.three(self.two(self.one(x)))

    for backend in ("auto", "skip"):
        tied = planned(Tied(), SDGP(backend=backend), (8, 6, 6))
        assert tied.method.record(tied.ctx)["backends"] == {"one": "masked", "two": "masked", "three": "skip"}
        double = planned(nn.Sequential(nn.Conv2d(8, 8, 3)).double(), SDGP(backend=backend), (8, 6, 6))
        assert double.method.record(double.ctx)["backends"] == {"0": "masked"}
    wide = nn.Sequential(nn.Flatten(), nn.Linear(4, 2**15))
    wide = planned(wide, SDGP(layers="all", backend="skip"), (4, 1, 1))
    assert wide.method.record(wide.ctx)["backends"] == {"1": "masked"}


def test_nothing_is_measured_where_nothing_is_to_choose(skipping, monkeypatch):
    chooses = Chooses(monkeypatch, lambda layer: "skip")
    model = nn.Sequential(nn.Conv2d(8, 8, 3))
    for parameters in ({"n": 4}, {"backend": "masked"}, {"backend": "skip"}):
        planned(copy.deepcopy(model), SDGP(**parameters), (8, 6, 6))
    planned(copy.deepcopy(model), SDGP(), (8, 6, 6), rehearsal=True)
    monkeypatch.setattr("kernels.compressed.dispatch.available", lambda device: False)
    hooks = planned(copy.deepcopy(model), SDGP(), (8, 6, 6))
    assert not chooses.asked
    assert hooks.method.record(hooks.ctx) == {"backends": {"0": "masked"}}


def test_each_fact_that_decides_a_time_makes_another_question(monkeypatch):
    asked = []
    monkeypatch.setattr(pruned_gradients, "choose", lambda question, *rest: asked.append(question))

    def ask(layer=None, shape=None, **parameters):
        method = SDGP(**parameters)
        hooks = planned(nn.Sequential(layer or nn.Conv2d(8, 8, 3)), method, (8, 6, 6), rehearsal=True)
        planned_layer = hooks.ctx.layers["0"]
        given = Shape.of("0", planned_layer, hooks.ctx)._replace(**(shape or {}))
        pruned_gradients.fastest(("masked",), method._backends._pruning, planned_layer, given, "")

    ask()
    for parameters in ({"n": 1}, {"m": 8}, {"mode": "random"}, {"scope": "group"}, {"products": "both"}):
        ask(**parameters)
    ask(nn.Conv2d(8, 8, 3, bias=False), products="both")
    for shape in ({"images": 5}, {"size": (8, 8)}, {"dtype": torch.bfloat16}):
        ask(shape=shape)
    for layer in (nn.Conv2d(8, 9, 3), nn.Conv2d(8, 8, 3, stride=2), nn.Conv2d(8, 8, 3, groups=2)):
        ask(layer)
    ask(nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last))
    assert len({str(one) for one in asked}) == len(asked) == 14
    ask(nn.Conv2d(8, 8, 3, bias=False))  # torch sums the bias's dense gradient with every backend
    ask(mode="magnitude", scope="group")
    ask(mode="magnitude", scope="channel")  # the scope of magnitudes is not used
    assert str(asked[14]) == str(asked[0])
    assert str(asked[15]) == str(asked[16])


@pytest.mark.parametrize("products", ["dgrad", "both"])
@pytest.mark.parametrize("layer", [nn.Conv2d(8, 12, 3, padding=1), nn.Linear(6, 12)], ids=["conv", "linear"])
def test_a_measurement_prunes_dense_gradients_and_multiplies_them(skipping, monkeypatch, layer, products):
    """Each candidate prunes the same gradient without zeros, and computes the products that use it."""
    taken = {}
    monkeypatch.setattr(
        pruned_gradients, "choose", lambda question, candidates, prepare, *rest: taken.update(prepare())
    )
    calls, pruned = [], []

    def note(place, name, into, what):
        """Let a function note something about its operands when it is called."""
        real = getattr(place, name)

        def noting(*given, **keywords):
            into.append((name, what(given)))
            return real(*given, **keywords)

        monkeypatch.setattr(place, name, noting)

    for name in ("dgrad", "wgrad"):
        note(pruned_gradients.TORCH, name, calls, lambda given: type(given[0]))
    for name in ("data_gradient", "weight_gradient"):
        note(pruned_gradients.dispatch, name, calls, lambda given: given[0].values.shape[-1])
    for name in ("prune_nm", "compress_nm"):
        note(kernels, name, pruned, lambda given: given[0])
    method = SDGP(layers="all", products=products)
    hooks = planned(nn.Sequential(copy.deepcopy(layer)), method, (8, 6, 6), rehearsal=True)
    names, layer = ("masked", "skip", "skip_dgrad"), hooks.ctx.layers["0"]
    before = torch.get_rng_state()
    pruned_gradients.fastest(names, method._backends._pruning, layer, Shape.of("0", layer, hooks.ctx), "")
    both = products == "both"
    wanted = {
        "masked": [("dgrad", torch.Tensor), ("wgrad", torch.Tensor)][: 1 + both],
        "skip": [("data_gradient", 6), ("weight_gradient", 6)][: 1 + both],
        "skip_dgrad": [("data_gradient", 6), ("wgrad", torch.Tensor)][: 1 + both],
    }
    for name in names:
        calls.clear()
        taken[name]()
        assert calls == wanted[name]
    assert torch.equal(torch.get_rng_state(), before)
    assert [name for name, _ in pruned] == ["prune_nm", "compress_nm", "compress_nm"]
    first = pruned[0][1]
    assert first.shape[0] == (4 if first.ndim == 4 else 4 * 8 * 6)  # rows of a linear layer: every position of an image
    assert first.all()
    assert all(torch.equal(grad, first) for _, grad in pruned)


def test_a_resumed_trial_keeps_its_choice(skipping, monkeypatch):
    chooses = Chooses(monkeypatch, lambda layer: "skip" if len(chooses.asked) == 1 else "masked")
    saved = Checkpoints()
    first = small_trainer(SDGP(m=8), on_checkpoint=saved.keep)
    first.fit()
    choice = first.runner.method.record(first.ctx)["backends"]
    assert set(choice.values()) == {"skip", "masked"}
    monkeypatch.setattr(pruned_gradients, "fastest", lambda *given: Fastest("masked", {}, rounds=0))
    resumed = small_trainer(SDGP(m=8))
    assert set(resumed.runner.method.record(resumed.ctx)["backends"].values()) == {"masked"}
    resumed.load_state_dict(saved[0])
    assert resumed.runner.method.record(resumed.ctx)["backends"] == choice
    assert {
        name: layer.op_plan.backend is not None for name, layer in resumed.ctx.layers.items() if name in choice
    } == {name: backend == "skip" for name, backend in choice.items()}
    resumed.fit()
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor)


def test_a_trial_that_skipped_is_not_resumed_without_the_kernels(skipping, monkeypatch):
    Chooses(monkeypatch, lambda layer: "skip")
    saved = Checkpoints()
    small_trainer(SDGP(), dataclasses.replace(RECIPE, epochs=1), on_checkpoint=saved.keep).fit()
    monkeypatch.setattr("kernels.compressed.dispatch.available", lambda device: False)
    line = (
        "^the checkpoint of this trial uses kernels that skip pruned channels, which are not available here; resume it"
    )
    with pytest.raises(ValueError, match=line):
        small_trainer(SDGP()).load_state_dict(saved[0])


def test_skip_says_where_it_cannot_be_had(without):
    line = (
        "backend=skip: no kernels that skip pruned channels are available on cpu (they need the CPU and a C++ "
        "compiler); use backend=auto"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        planned(small_net(), SDGP(backend="skip"), (3, 8, 8))
    hooks = planned(small_net(), SDGP(), (3, 8, 8))
    assert set(hooks.method.record(hooks.ctx)["backends"].values()) == {"masked"}


def test_what_was_measured_is_measured_again_for_other_threads(skipping, monkeypatch):
    Chooses(monkeypatch, lambda layer: "skip")
    saved = Checkpoints()
    small_trainer(SDGP(m=8), dataclasses.replace(RECIPE, epochs=1), on_checkpoint=saved.keep).fit()
    monkeypatch.setattr(pruned_gradients, "fastest", lambda *given: Fastest("masked", {}, rounds=0))
    again = small_trainer(SDGP(m=8))
    again.load_state_dict(saved[0])
    assert "skip" in again.runner.method.record(again.ctx)["backends"].values()
    again.runner.choose_again()
    assert set(again.runner.method.record(again.ctx)["backends"].values()) == {"masked"}
    assert all(layer.op_plan is None or layer.op_plan.backend is None for layer in again.ctx.layers.values())
