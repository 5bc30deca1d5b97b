"""SDGP: which gradients see the pruned output gradient, and which layers."""

import copy
import pickle

import pytest
import torch
from torch import nn

import kernels
from kernels import PruneRule
from methods.sdgp import SDGP, PruneOutputGradient
from suite.method import Density, Site
from suite.ops import apply, convert
from tasks.models.resnet9 import resnet9

SHAPE = (3, 16, 16)


def masked(**parameters):
    """SDGP with torch's dense products; tests of the other backends are in `test_sdgp_backends.py`."""
    return SDGP(**{"backend": "masked", **parameters})


def planned(model, method, shape=SHAPE):
    return apply(model, method, input_shape=shape, num_classes=10, epochs=1, batch_size=4, seed=7)


MODES = [
    {"mode": "random"},
    {"mode": "magnitude"},
    {"mode": "unbiased"},
    {"mode": "rescaled"},
    {"mode": "rescaled", "scope": "group"},
    {"mode": "rescaled", "scope": "channel", "n": 1, "m": 8},
]


def passed(layer, inputs, grad):
    """Return the output of a layer, and the gradients of weight, bias and input."""
    layer.zero_grad()
    inputs = inputs.detach().requires_grad_()
    out = layer(inputs)
    out.backward(grad)
    return out, layer.weight.grad, layer.bias.grad, inputs.grad


@pytest.mark.parametrize("products", ["dgrad", "both"])
@pytest.mark.parametrize("parameters", MODES, ids=str)
@pytest.mark.parametrize(
    ("geometry", "size"),
    [({"padding": 1}, 3), ({"stride": 2, "padding": 2}, 5), ({"groups": 2}, 3), ({"stride": 2}, 1)],
)
def test_sdgp_4_only_the_chosen_products_see_the_pruned_gradient(parameters, geometry, size, products):
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 12, size, **geometry))
    pruned = copy.deepcopy(dense)
    convert(dense)  # the suite's dense layers: those of torch, but for 1x1 convolutions with a stride on the CPU
    planned(pruned, masked(**parameters, products=products))
    hidden = dense[0](torch.randn(4, *SHAPE)).contiguous(memory_format=torch.channels_last)
    grad = torch.randn(dense[1](hidden).shape).contiguous(memory_format=torch.channels_last)
    n, m = parameters.get("n", 2), parameters.get("m", 4)
    rescale = parameters.get("scope", "sample_channel") if parameters["mode"] == "rescaled" else "none"
    mode = "magnitude" if parameters["mode"] == "rescaled" else parameters["mode"]
    # The random key of a site depends on its operand.
    site = Site("1", "grad_shared" if products == "both" else "grad_dgrad", 0, 0, 7)
    fed = kernels.prune_nm(grad, PruneRule(n, m, mode=mode, rescale=rescale), seed=site.key)
    found, of_dense = passed(pruned[1], hidden, grad), passed(dense[1], hidden, grad)
    of_pruned = passed(dense[1], hidden, fed)
    unpruned = 3 if products == "dgrad" else 1  # output, weight and bias, or the output alone: bit for bit
    assert all(map(torch.equal, found[:unpruned], of_dense[:unpruned]))
    assert all(map(torch.equal, found[unpruned:], of_pruned[unpruned:]))
    assert not torch.equal(found[3], of_dense[3])


def test_products_both_saves_in_both_and_prunes_once():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 12, 3, padding=1))
    overheads = []
    for n, m, products, wgrad in ((2, 4, "both", 1 / 2), (1, 8, "both", 2 / 12), (2, 4, "dgrad", 1.0)):
        method = masked(n=n, m=m, products=products)
        hooks = planned(copy.deepcopy(model), method)
        assert method.density("1", hooks.ctx) == Density(1.0, n / m if m == 4 else 2 / 12, wgrad)
        overheads.append(method.overhead("1", 2, hooks.ctx))
    assert overheads[0] == overheads[2] > 0


def test_sdgp_5_output_is_untouched_and_so_are_first_convolution_and_linear_layer():
    torch.manual_seed(0)
    model = resnet9(width=1 / 16)
    bare = copy.deepcopy(model)
    hooks = planned(model, masked())
    images = torch.randn(4, *SHAPE)
    assert torch.equal(model.train()(images), bare.train()(images))
    assert torch.equal(model.eval()(images), bare.eval()(images))
    plans = {name: layer.op_plan for name, layer in hooks.ctx.layers.items()}
    assert plans["prep.conv"].empty
    assert plans["classifier"].empty
    for name in set(plans) - {"prep.conv", "classifier"}:
        assert plans[name].grad_dgrad == PruneOutputGradient(PruneRule(2, 4, "magnitude", "sample_channel"))
        others = (plans[name].weight_forward, plans[name].grad_shared, plans[name].grad_wgrad, plans[name].backend)
        assert others == (None,) * 4


def test_sdgp_5_a_converted_layer_trains_by_the_rule_inside_a_net():
    torch.manual_seed(0)
    model = resnet9(width=1 / 16)
    bare = copy.deepcopy(model)
    planned(model, masked(mode="magnitude"))
    for net in (model, bare):
        net(torch.ones(4, *SHAPE)).sum().backward()
    # Behind the last pruned layer nothing differs; before it, everything is computed from pruned gradients.
    assert torch.equal(model.classifier.weight.grad, bare.classifier.weight.grad)
    assert torch.equal(model.reduce.conv.weight.grad, bare.reduce.conv.weight.grad)
    assert not torch.equal(model.prep.conv.weight.grad, bare.prep.conv.weight.grad)


def test_layers_all_takes_linear_layers_too():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3), nn.Flatten(), nn.Linear(864, 10))
    hooks = planned(model, masked(layers="all"))
    assert [name for name, layer in hooks.ctx.layers.items() if not layer.op_plan.empty] == ["1", "3"]
    hidden = torch.randn(4, 864, requires_grad=True)
    grad = torch.randn(4, 10)
    model[3](hidden).backward(grad)
    assert torch.equal(hidden.grad, kernels.prune_nm(grad, PruneRule(2, 4, rescale="sample_channel")) @ model[3].weight)


@pytest.mark.parametrize(
    "parameters", [{"mode": "magnitude"}, {"mode": "rescaled"}, {"mode": "random"}, {"mode": "unbiased"}], ids=str
)
@pytest.mark.parametrize("products", ["dgrad", "both"])
def test_the_tokens_of_a_linear_layer_are_rows_whose_channels_are_pruned(parameters, products):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 12), nn.Linear(12, 8))
    layer = model[1]
    planned(model, masked(layers="all", products=products, **parameters))
    tokens, grad = torch.randn(3, 5, 12), torch.randn(3, 5, 8)
    _, weight_grad, bias_grad, tokens_grad = passed(layer, tokens, grad)
    rule = {"mode": "magnitude", "rescale": "sample_channel"} if parameters["mode"] == "rescaled" else parameters
    operand = "grad_shared" if products == "both" else "grad_dgrad"
    key = Site("1", operand, 0, 0, 7).key
    fed = kernels.prune_nm(grad.reshape(15, 8), PruneRule(2, 4, **rule), seed=key)
    # Of four channels of a token, two are left, whatever the other tokens of its image have.
    assert (fed.unflatten(1, (2, 4)) != 0).sum(2).eq(2).all()
    assert torch.equal(tokens_grad, (fed @ layer.weight).unflatten(0, (3, 5)))
    of_weight = fed if products == "both" else grad.reshape(15, 8)
    assert torch.equal(weight_grad, of_weight.T @ tokens.reshape(15, 12))
    assert torch.equal(bias_grad, of_weight.sum(0))


def test_n_equal_to_m_is_dense():
    model = resnet9(width=1 / 16)
    method = masked(n=4, m=4, mode="random")
    hooks = planned(model, method)
    assert all(layer.op_plan.empty for layer in hooks.ctx.layers.values())
    assert method.density("down.conv", hooks.ctx) == Density()
    assert method.overhead("down.conv", 8, hooks.ctx) == 0.0


def test_density_counts_the_short_group():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Conv2d(8, 10, 3), nn.Conv2d(10, 9, 3), nn.Flatten(), nn.Linear(900, 10)
    )
    method = masked()
    hooks = planned(model, method)
    assert method.density("0", hooks.ctx) == Density()
    assert method.density("1", hooks.ctx) == Density(dgrad=(2 + 2 + 2) / 10)  # groups of 4, 4 and 2
    assert method.density("2", hooks.ctx) == Density(dgrad=(2 + 2 + 1) / 9)
    assert method.density("4", hooks.ctx) == Density()


def test_overhead_is_counted_for_each_pixel():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 10, 3), nn.Flatten(), nn.Linear(1440, 10))
    operations = {  # groups of 4, 4 and 2
        "magnitude": 6 + 6 + 1,
        "random": 2 * 10,
        "rescaled": 6 + 6 + 1 + 3 * 10,
        "unbiased": 6 * 10 + 2 * 3,
    }
    for mode, per_pixel in operations.items():
        method = masked(mode=mode)
        hooks = planned(copy.deepcopy(model), method)
        assert method.overhead("1", 5, hooks.ctx) == per_pixel * 5 * 12 * 12
        assert method.overhead("0", 5, hooks.ctx) == method.overhead("3", 5, hooks.ctx) == 0.0


def test_a_transform_pickles_copies_and_draws_by_its_site():
    transform = PruneOutputGradient(PruneRule(2, 4, "random", "none"))
    assert pickle.loads(pickle.dumps(transform)) == copy.deepcopy(transform) == transform
    grad = torch.randn(2, 16, 4, 4)
    site = Site("layer", "grad_dgrad", 3, 0, 7)
    assert torch.equal(transform(grad, site), transform(grad, site))
    for other in (
        Site("other", "grad_dgrad", 3, 0, 7),
        Site("layer", "grad_dgrad", 4, 0, 7),
        Site("layer", "grad_dgrad", 3, 1, 7),
        Site("layer", "grad_dgrad", 3, 0, 8),
    ):
        assert not torch.equal(transform(grad, site), transform(grad, other))


@pytest.mark.parametrize(
    ("parameters", "line"),
    [
        ({"n": 5, "m": 4}, "n is 5; it must not be larger than m, which is 4"),
        ({"n": 0}, "n is 0"),
        ({"n": 1, "m": 1}, "m is 1; allowed: an integer from 2 to 32"),
        ({"m": 33}, "m is 33"),
        ({"mode": "stc"}, "mode is 'stc'; allowed: random, magnitude, rescaled"),
        ({"scope": "batch"}, "scope is 'batch'; allowed"),
        ({"layers": "linear"}, "layers is 'linear'; allowed"),
        ({"products": "wgrad"}, "products is 'wgrad'; allowed: dgrad, both"),
        ({"backend": "dense"}, "backend is 'dense'; allowed: auto, masked, skip"),
    ],
)
def test_wrong_parameters_are_one_line(parameters, line):
    with pytest.raises(ValueError, match=line):
        masked(**parameters)
