"""The check of a library's products: what it accepts, what it refuses and how it says so, and what it leaves alone."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from small_training import SHAPE, small_net, small_trainer
from torch import nn

from suite.engine.cost import torch_hardware
from suite.engine.cost.flops import count_layers
from suite.engine.network.products import TorchBackend
from suite.engine.training.product_check import ProductCheck, WrongProduct
from suite.method import Method, OpPlan, ReconfigPlan
from suite.ops import convert

CPU = torch.device("cpu")


def wrong_below(channels):
    """A weight gradient that is wrong where there are fewer input channels than so many."""
    right = TorchBackend.wgrad

    def wgrad(self, grad, activation, weight, geometry, with_bias):
        found, bias = right(self, grad, activation, weight, geometry, with_bias)
        if geometry.kind == "conv" and 3 < weight.shape[1] < channels:
            found = found.clone()
            found[0, 0, 0, 0] += 10 * found.std()
        return found, bias

    return wgrad


class Cuts(Method):
    """Leaves six channels of each space after the first epoch."""

    def reconfigure(self, ctx):
        if ctx.epochs_done > 1:
            return None
        return ReconfigPlan(kept={space.name: space.original[:6] for space in ctx.spaces.values() if not space.frozen})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sound_products_pass_each_geometry_once_and_leave_random_state_and_meters(dtype):
    model = small_net().to(memory_format=torch.channels_last)
    layers = convert(model)
    check, before = ProductCheck(dtype, CPU), torch.get_rng_state()
    costs = count_layers(model, SHAPE)
    assert check.check(layers, costs) == len(layers)
    assert check.check(layers, costs) == 0
    assert torch.equal(before, torch.get_rng_state())
    assert all(not layer.meter.calls for layer in layers.values())
    assert set(check.implementations) == set(layers)
    assert all(set(products) == {"forward", "dgrad", "wgrad"} for products in check.implementations.values())
    listed = [one for products in check.by_implementation().values() for one in products]
    assert sorted(listed) == sorted(f"{name} {one}" for name in layers for one in ("forward", "dgrad", "wgrad"))


def test_a_wrong_gradient_ends_the_training_after_the_cut_that_leads_to_it(monkeypatch):
    monkeypatch.setattr(TorchBackend, "wgrad", wrong_below(8))
    trainer = small_trainer(Cuts())
    with pytest.raises(WrongProduct) as caught:
        trainer.fit()
    assert trainer.ctx.epochs_done == 1
    text = str(caught.value)
    for part in ("layer '3.branch.0'", "weight gradient", "6 to 6 channels", "kernel 3x3", "input 8x8", "float32"):
        assert part in text
    assert f"torch {torch.__version__}, oneDNN {torch_hardware.onednn_version()}" in text


def two_alike():
    model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1))
    return convert(model), count_layers(model, SHAPE)


def doubled(self, *operands):
    found, bias = RIGHT(self, *operands)
    return 2 * found, bias


RIGHT = TorchBackend.wgrad


def test_that_torch_is_right_says_nothing_of_another_backend_and_the_other_way_round(monkeypatch):
    wrong, right = (type("Own", (TorchBackend,), {"wgrad": wgrad})() for wgrad in (doubled, RIGHT))
    layers, costs = two_alike()
    layers["1"].op_plan = OpPlan(backend=wrong)
    with pytest.raises(WrongProduct, match="layer '1': its weight gradient"):
        ProductCheck(torch.float32, CPU).check(layers, costs)
    layers["0"].op_plan, layers["1"].op_plan = OpPlan(backend=right), OpPlan()
    monkeypatch.setattr(TorchBackend, "wgrad", doubled)
    with pytest.raises(WrongProduct, match="layer '1': its weight gradient"):
        ProductCheck(torch.float32, CPU).check(layers, costs)


@pytest.mark.parametrize("factor", [0, 1, 2])
def test_a_backend_may_leave_out_gradients_of_masked_weights_and_may_not_change_them(factor):
    def wgrad(self, *operands):
        found, bias = RIGHT(self, *operands)
        return torch.cat([factor * found[:, :1], found[:, 1:]], 1), bias

    def without_first(weight, site):
        return torch.cat([torch.zeros_like(weight[:, :1]), weight[:, 1:]], 1)

    layers, costs = two_alike()
    backend = type("Own", (TorchBackend,), {"wgrad": wgrad})()
    layers["0"].op_plan = OpPlan(weight_forward=without_first, backend=backend)
    with nullcontext() if factor < 2 else pytest.raises(WrongProduct, match="layer '0': its weight gradient"):
        ProductCheck(torch.float32, CPU).check(layers, costs)


def test_a_layer_that_pads_before_its_product_is_checked_at_the_padded_size(monkeypatch):
    monkeypatch.setattr(TorchBackend, "wgrad", doubled)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"))
    with pytest.raises(WrongProduct, match=f"padding 0x0, dilation 1x1, input {SHAPE[1] + 2}x{SHAPE[2] + 2}"):
        ProductCheck(torch.float32, CPU).check(convert(model), count_layers(model, SHAPE))


def wrong_for_large_images(name):
    """A product of torch that is wrong for inputs of 16 pixels."""
    right = getattr(TorchBackend, name)

    def product(self, *operands):
        found = right(self, *operands)
        images = operands[1] if name == "wgrad" else operands[0]
        if images.shape[-1] != 16:
            return found
        return (2 * found[0], found[1]) if name == "wgrad" else 2 * found

    return product


def test_a_forward_product_of_an_evaluation_says_nothing_of_the_gradients_of_another_layer(monkeypatch):
    layers, costs = two_alike()
    large = count_layers(nn.Sequential(*layers.values()), (3, 16, 16))
    check = ProductCheck(torch.float32, CPU)
    check.check(layers, costs, large)
    assert all(set(products) == {"forward", "dgrad", "wgrad"} for products in check.implementations.values())
    monkeypatch.setattr(TorchBackend, "wgrad", wrong_for_large_images("wgrad"))
    with pytest.raises(WrongProduct, match="layer '1': its weight gradient"):
        ProductCheck(torch.float32, CPU).check(layers, {"0": costs["0"], "1": large["1"]}, large)


@pytest.mark.parametrize("training_only", [False, True])
def test_a_layer_that_runs_in_training_only_is_not_checked_at_the_size_of_an_evaluation(monkeypatch, training_only):
    layers, costs = two_alike()
    large = count_layers(nn.Sequential(*layers.values()), (3, 16, 16))
    evaluated = {name: replace(cost, training_only=training_only) for name, cost in large.items()}
    monkeypatch.setattr(TorchBackend, "forward", wrong_for_large_images("forward"))
    with nullcontext() if training_only else pytest.raises(WrongProduct, match="layer '0': its output is wrong"):
        ProductCheck(torch.float32, CPU).check(layers, costs, evaluated)


def test_only_changed_layers_are_checked_again():
    trainer = small_trainer(Cuts())
    counts = []
    check = trainer.products.check
    trainer.products.check = lambda *given: counts.append(check(*given))
    trainer.fit()
    assert counts[0] == len(trainer.ctx.layers)
    assert sum(count > 0 for count in counts) == 2
    assert trainer.clock.seconds["check"] > 0
    assert trainer.clock.training == trainer.clock.seconds["train"] + trainer.clock.seconds["reconfigure"]


def test_reference_implementations_are_named(monkeypatch):
    monkeypatch.setattr(torch_hardware.Heard, "summary", lambda self: "jit:avx2 ref:any")
    model = small_net().to(memory_format=torch.channels_last)
    layers, check = convert(model), ProductCheck(torch.float32, CPU)
    check.check(layers, count_layers(model, SHAPE))
    assert "0 wgrad: jit:avx2 ref:any" in check.fallbacks()
    check.log_error = "OSError: closed"
    assert check.fallbacks() == "not recorded: OSError: closed"


def test_what_onednn_says_is_read(capfd):
    print("before")
    with torch_hardware.listening() as heard:
        torch.nn.functional.conv2d(torch.zeros(16, 16, 16, 16), torch.zeros(16, 16, 3, 3))
    print("after")
    assert capfd.readouterr().out == "before\nafter\n"  # nothing of it comes through
    assert any(kind == "convolution" for kind, _ in heard.implementations())
    heard.text = (
        "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,a,,,8x8,0.1\n"
        "onednn_verbose,v1,primitive,exec,cpu,convolution,ref:any,backward_weights,a,b,c,d,0.1\n"
        "onednn_verbose,primitive,exec,cpu,matmul,brg_matmul:avx2,undef,a,b,c,d,0.1\n"
    )
    assert heard.implementations() == [("convolution", "ref:any"), ("matmul", "brg_matmul:avx2")]
    assert heard.summary() == "ref:any brg_matmul:avx2"
    assert torch_hardware.is_reference(heard.summary())
    assert not torch_hardware.is_reference("jit:avx2")


def test_version_and_instructions_are_facts():
    facts = torch_hardware.onednn_facts()
    assert facts["onednn"][0].isdigit()
    assert facts["onednn_isa"] != "not recorded"
