"""Optimizers across a cut: the next step equals that of the masked model, or the optimizer is refused at setup."""

import copy

import pytest
import torch
from cuttable_nets import assert_equal_steps, every_other, silence, step, trained, without
from small_methods import Nothing, Shrinks
from small_training import SHAPE, small_net

from suite.engine.network.channels.surgery import apply_plan
from suite.errors import UsageError
from suite.ops import apply

ELEMENTWISE = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adagrad": {},
    "Adadelta": {},
    "Rprop": {},
    "ASGD": {"t0": 1},
}
OTHERS = {
    "LBFGS": "its history is one vector of all parameters",
    "Adafactor": "its statistics are those of rows and columns",
    "Muon": "",  # cut, but not elementwise: it trains only matrices, whose rows and columns it makes orthogonal
    "SparseAdam": "",  # refuses dense gradients itself
}


def test_every_optimizer_of_torch_is_examined():
    kinds = {name for name, kind in vars(torch.optim).items() if isinstance(kind, type) and name != "Optimizer"}
    assert kinds <= {*ELEMENTWISE, *OTHERS}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_the_step_after_a_cut_is_that_of_the_masked_big_model(name):
    model, spaces, images = trained("plain")
    # Normalisation follows this bias, so that its gradient is zero but for rounding, and Rprop steps by its sign.
    model[0].bias.requires_grad_(False)
    optimizer = getattr(torch.optim, name)(model.train().parameters(), lr=1e-3, **ELEMENTWISE[name])
    for _ in range(3):
        step(model, optimizer, images)
    dead = every_other(spaces)
    silence(model, spaces, dead)
    big, other = copy.deepcopy((model, optimizer))
    index_map = apply_plan(model, without(spaces, dead), spaces, optimizer)
    # Silenced weights get gradients and change in the big model; the small model does not have them.
    assert_equal_steps((model, optimizer), (big, other), images, index_map, atol=1e-8)


def hooks(method, optimizer):
    model = small_net()
    applied = apply(model, method, input_shape=SHAPE, num_classes=4, epochs=3, batch_size=4)
    applied.attach(optimizer(model.parameters()))
    return applied


@pytest.mark.parametrize("name", [name for name, reason in OTHERS.items() if reason])
def test_an_optimizer_whose_state_cannot_be_cut_is_refused_at_setup(name):
    make = getattr(torch.optim, name)
    line = f"Shrinks reconfigures the network, and the state of {name} cannot be cut with it: {OTHERS[name]}; use "
    with pytest.raises(UsageError, match=line):
        hooks(Shrinks(), make)
    hooks(Nothing(), make)


def test_state_of_another_shape_is_refused_after_the_first_step():
    class Rows(torch.optim.SGD):
        def step(self):
            super().step()
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["rows"] = torch.zeros(parameter.shape[0])

    applied = hooks(Shrinks(), lambda parameters: Rows(parameters, lr=0.1))
    applied.model(torch.randn(4, *SHAPE)).sum().backward()
    with pytest.raises(
        UsageError, match=r"the state of Rows cannot be cut with it: its 'rows' has shape \(8,\) for a par"
    ):
        applied.optimizer_step()


class Around(torch.optim.SGD):
    """Holds another optimizer with a state of its own, as timm's Lookahead does."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, **options)
        self._inner = torch.optim.AdamW(self.param_groups)


def test_an_optimizer_around_another_one_is_refused():
    with pytest.raises(
        UsageError, match="of Around cannot be cut with it: it is around AdamW, which has a state of its"
    ):
        hooks(Shrinks(), Around)


def test_state_is_looked_at_again_just_before_a_cut():
    class Late(torch.optim.SGD):
        def step(self):
            super().step()
            state = self.state[self.param_groups[0]["params"][0]]
            state["factors"] = [torch.ones(2, 2)] if "factors" in state else None  # in the second step

    applied = hooks(Shrinks(), lambda parameters: Late(parameters, lr=0.1))
    for _ in range(2):
        applied.model(torch.randn(4, *SHAPE)).sum().backward()
        applied.optimizer_step()
    before = applied.model[0].weight.shape
    with pytest.raises(
        UsageError, match="the state of Late cannot be cut with it: its 'factors' is a list; use an opt"
    ):
        applied.end_epoch()
    assert applied.model[0].weight.shape == before


def test_a_layer_that_is_unfrozen_after_attach_is_not_cut_without_its_optimizer():
    model = small_net()
    first, *rest = model.parameters()
    first.requires_grad_(False)
    applied = apply(model, Shrinks(), input_shape=SHAPE, num_classes=4, epochs=3, batch_size=4)
    applied.attach(torch.optim.SGD(rest, lr=0.1))
    first.requires_grad_(True)
    shape = first.shape
    with pytest.raises(
        UsageError, match=r"^Shrinks may cut parameter '0\.weight', which no attached optimizer has: att"
    ):
        applied.end_epoch()
    assert model[0].weight.shape == shape


def test_numbers_among_an_optimizers_state_are_no_reason_to_refuse_it():
    applied = hooks(Shrinks(), torch.optim.Adam)
    applied.model(torch.randn(4, *SHAPE)).sum().backward()
    assert applied.optimizer_step()
    assert all(state["step"].shape == () for state in applied.ctx.optimizer.state.values())
