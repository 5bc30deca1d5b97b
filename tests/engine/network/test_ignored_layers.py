"""Layers that a method leaves out by name (`ignore`), and layers that are not trained."""

import copy
import dataclasses
import re

import pytest
import torch
import torch.nn.functional as F
from cuttable_nets import SHAPE, plain, resnet
from torch import nn
from torch.nn.utils import parametrizations, prune

from methods.masks.masking import MaskedMethod
from methods.prunetrain import PruneTrain
from methods.sdgp import SDGP
from suite.engine.network.channels.ignored import ignored_modules, leave_out
from suite.engine.network.channels.spaces import find_index_spaces
from suite.errors import UsageError
from suite.ops import apply
from suite.trials.planning import plan
from suite.trials.spec import SuiteSpec


class Masked(MaskedMethod):
    def sparsity_now(self, ctx):
        return self.sparsity


def started(model, method, shape=SHAPE):
    return apply(model, method, input_shape=shape, num_classes=5, epochs=2, batch_size=4)


def trained(model, method, epochs=2):
    """Train a model for some epochs of two steps, and return the hooks."""
    hooks = started(model, method)
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1, momentum=0.9)
    hooks.attach(optimizer)
    for _ in range(epochs):
        for _ in range(2):
            loss = F.cross_entropy(model(torch.randn(4, *SHAPE)), torch.arange(4))
            (loss + hooks.regularization(loss)).backward()
            hooks.optimizer_step()
            optimizer.zero_grad()
        hooks.end_epoch()
    hooks.finish()
    return hooks


def test_channels_of_an_ignored_layer_stay_and_others_go():
    torch.manual_seed(0)
    cut, kept = plain(), plain()
    trained(cut, PruneTrain(interval=1, threshold=0.4))
    hooks = trained(kept, PruneTrain(interval=1, threshold=0.4, ignore=("4",)))
    assert cut[4].weight.shape[0] < 8
    assert cut[0].weight.shape[0] < 6
    assert kept[4].weight.shape == (8, 6, 3, 3)  # its inputs stay too
    assert kept[9].weight.shape[1] == 32
    assert kept[9].weight.shape[0] < 10
    assert hooks.not_planned == {"4": "ignore=4 leaves '4' out"}
    assert "4" not in hooks.ctx.layers


@pytest.mark.parametrize("method", [SDGP(layers="all", ignore=("4",)), Masked(structure="channel", ignore=("4",))])
def test_an_ignored_layer_has_no_plan_and_no_mask(method):
    model = plain()
    hooks = trained(model, method, epochs=1)
    assert list(hooks.ctx.layers) == ["0", "9", "11"]
    assert type(model[4]) is nn.Conv2d
    assert model[4].weight.count_nonzero() == model[4].weight.numel()


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [("3", {"3.branch.0", "3.branch.3"}), ("*.branch.[3]", {f"{block}.branch.3" for block in range(3, 9)})],
)
def test_a_pattern_names_modules_and_what_is_in_them(pattern, wanted):
    hooks = started(resnet(2), SDGP(ignore=(pattern, "8.branch.3")))
    ignored = hooks.not_planned.keys()
    assert ignored == wanted | {"8.branch.3"}
    for name in ("3.branch", "4.branch"):
        assert (name in hooks.ctx.spaces.removable_branches) != any(one.startswith(name) for one in ignored)
        if name in hooks.ctx.spaces.fixed_branches:
            assert f"ignore={pattern} leaves" in hooks.ctx.spaces.fixed_branches[name]


def test_a_normalisation_can_be_ignored_and_keeps_its_channels():
    hooks = started(plain(), PruneTrain(ignore=("5",)))
    assert hooks.ctx.spaces["4"].frozen_because == "ignore=5 leaves '5' out"
    assert not hooks.ctx.spaces["0"].frozen
    assert "4" in hooks.ctx.layers


def test_only_what_nothing_else_froze_is_left_out_and_branches_are_fixed_by_module_and_by_channels():
    model = resnet(1)
    spaces = find_index_spaces(model, SHAPE)
    free = {name for name, space in spaces.items() if not space.frozen}
    leave_out(spaces, ignored_modules(model, ("*",)))
    assert {name for name, space in spaces.items() if "ignore=*" in space.frozen_because} == free < spaces.keys()
    spaces = find_index_spaces(model, SHAPE)
    spaces["3.branch.0"].frozen_because = "for another reason"  # the module inside is left out all the same
    last = spaces.removable_branches["5.branch"]
    spaces.removable_branches["5.branch"] = dataclasses.replace(last, spaces=("0",))  # with channels of the first layer
    leave_out(spaces, ignored_modules(model, ("3.branch.1", "0")))
    assert [name for name, space in spaces.items() if "ignore=" in space.frozen_because] == ["0"]
    assert spaces.fixed_branches == {
        "3.branch": "ignore=3.branch.1 leaves '3.branch.1' out",
        "5.branch": "ignore=0 leaves '0' out",
    }


def test_a_shared_weight_is_ignored_under_all_of_its_names():
    model = plain()
    twin = nn.Conv2d(6, 6, 3, padding=1)
    model.insert(2, twin)
    model.insert(3, nn.Conv2d(6, 6, 3, padding=1))
    model[3].weight = twin.weight
    hooks = started(model, SDGP(ignore=("3",)))
    assert {"2", "3"} == hooks.not_planned.keys()
    assert hooks.not_planned["2"] == "ignore=3 leaves '3' out, with which '2' shares a parameter"


def test_a_pattern_that_names_nothing_is_refused_with_the_nearest_names():
    with pytest.raises(UsageError, match=r"^ignore=3.brunch.0 names no layer; the nearest names are 3.branch.0, "):
        started(resnet(1), SDGP(ignore=("3.brunch.0",)))


@pytest.mark.parametrize("method", [SDGP, PruneTrain, Masked])
def test_a_refusal_names_layers_that_are_not_planned(method):
    with pytest.raises(ValueError, match=r"'0' is not planned: ignore=\* leaves '0' out"):
        started(plain(), method(ignore=("*", "0")))
    with pytest.raises(ValueError, match=r"\('0' is not planned: it is a Conv1d, and only .* planned\)$") as refused:
        started(nn.Sequential(nn.Conv1d(8, 5, 8), nn.Flatten()), method(), (8, 8))
    assert str(refused.value).count("'0' (Conv1d) is not understood") == (method is PruneTrain)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (parametrizations.weight_norm, "by _WeightNorm .*remove_parametrizations"),
        (nn.utils.weight_norm, "by weight_norm .*utils.remove_weight_norm"),
        (nn.utils.spectral_norm, "by spectral_norm .*utils.remove_spectral_norm"),
        (prune.identity, r"by prune .*utils.prune.remove\(layer, 'weight'\)"),
    ],
)
def test_a_layer_whose_weight_is_computed_is_refused_with_the_remedy_unless_it_is_ignored(form, said):
    model = plain()
    form(model[4], "weight")
    with pytest.raises(UsageError, match=f"layer '4' cannot be planned.* {said}.* with ignore=4 .in Python"):
        started(model, SDGP())
    hooks = trained(model, PruneTrain(interval=1, threshold=0.4, ignore=("4",)))
    assert hooks.not_planned == {"4": "ignore=4 leaves '4' out"}


def test_ignored_layers_are_part_of_the_id():
    given = {"tasks": "digits", "preset": "smoke", "seeds": (0,), "device": "cpu", "dtype": "float32", "data_root": ""}
    plain, empty, one = plan(SuiteSpec(methods="sdgp[n=1],sdgp[n=1,m=8,ignore=()],sdgp[n=1,ignore=prep.*]", **given))
    assert one.parameters == {**plain.parameters, "ignore": ("prep.*",)}
    assert len({plain.hash, empty.hash, one.hash}) == 3


def test_layers_that_are_not_trained_keep_channels_and_values_below_the_threshold():
    torch.manual_seed(0)
    model = plain()
    model[4].requires_grad_(False)
    with torch.no_grad():
        model[4].weight[:4] *= 1e-3
    before = copy.deepcopy(model[4].state_dict())
    trained(model, PruneTrain(interval=1, threshold=0.4, zeroing="dead"))
    after = model[4].state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model[9].weight.shape[0] < 10


class UnderTwoNames(nn.Module):
    """Has a layer and a part under two names each, and a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.body = plain()
        self.other, self.second = self.body, self.body[4]
        self.gate = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.other(x) * self.gate


@pytest.mark.parametrize("pattern", ["second", "body.4", "other.[4]"])
def test_a_module_under_two_names_is_ignored_by_each_of_them(pattern):
    hooks = started(UnderTwoNames(), PruneTrain(ignore=(pattern,)))
    assert hooks.not_planned == {"body.4": f"ignore={pattern} leaves 'body.4' out"}
    assert hooks.ctx.spaces["body.4"].frozen_because == f"ignore={pattern} leaves 'body.4' out"
    assert not hooks.ctx.spaces["body.9"].frozen


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("gate", "ignore=gate names a parameter or buffer, 'gate', and only modules can be named; this one belongs to"),
        ("body.4.weight", "'body.4.weight', and only modules can be named, such as its own, body.4"),
    ],
)
def test_a_parameter_cannot_be_ignored(pattern, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        started(UnderTwoNames(), SDGP(ignore=(pattern,)))
