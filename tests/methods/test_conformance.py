"""Every registered method keeps every contract; a new one is held to them by being registered."""

import functools

import pytest

from suite import registry
from suite.backends import TorchBackend
from suite.conformance import CONTRACTS, Subject, check
from suite.method import Density, Method, OpPlan

VARIANTS = {
    "sdgp": ({}, {"mode": "random"}, {"mode": "magnitude", "n": 1, "m": 8}, {"scope": "group", "layers": "all"}),
    "prunetrain": (
        {},
        {"update": "proximal", "coefficient": "size", "zeroing": "removed"},
        {"gating": True, "round_to": 4, "dynamic_batch": "start"},
    ),
    "dense": ({}, {"match": "prunetrain"}),
    "clicktrain": (
        {},
        {"pool": "dynamic", "scope": "filter", "batches": 3, "mask_momentum": True, "mixup": 0.3},
        {"backend": "compact"},
        {"backend": "masked", "pool": 12, "balance": "filter", "schedule": "paper"},
    ),
}
CASES = [(name, index) for name in registry.names("method") for index in range(len(VARIANTS.get(name, ({},))))]


@functools.cache
def subject(name, index):
    return Subject(name, VARIANTS.get(name, ({},))[index])


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
@pytest.mark.parametrize(("name", "index"), CASES)
def test_contract(name, index, contract):
    assert contract(subject(name, index))


def broken(**members):
    """A registered method with one fault."""
    return type("Faulty", (Method,), {"__annotations__": {}, **members})


def halve(weight, site):
    return weight * (weight.abs() > weight.abs().median())


def zero_in_place(grad, site):
    return grad.mul_(0.5)


class Boasts(TorchBackend):
    """A backend that says it multiplied twice what there is."""

    def executed(self, product, grad, weight, geometry):
        return 2.0


class Halves(TorchBackend):
    """A backend whose weight gradient is half of what it should be."""

    def wgrad(self, *operands):
        grad, bias = super().wgrad(*operands)
        return grad / 2, bias


class Counts:
    """A transform whose result depends on how often it was called."""

    calls = 0

    def __call__(self, weight, site):
        self.calls += 1
        return weight * self.calls


def odd_steps(grad, site):
    return grad * 0 if site.step % 2 else grad


FAULTS = {
    "transforms_are_pure": broken(plan=lambda self, name, layer: OpPlan(grad_dgrad=zero_in_place)),
    "replays": broken(replayable=True, plan=lambda self, name, layer: OpPlan(grad_dgrad=odd_steps)),
    "density_is_true": broken(
        plan=lambda self, name, layer: OpPlan(weight_forward=halve),
        density=lambda self, name, step: Density(0.1, 0.1, 1.0),
    ),
    "trains": broken(regularization=lambda self, model, ctx: next(model.parameters()).sum() * float("nan")),
    "resumes": broken(
        before_optimizer_step=lambda self, ctx: (
            setattr(self, "n", getattr(self, "n", 0) + 1)
            or ([p.grad.mul_(1 + self.n / 10) for p in ctx.model.parameters()] and None)
        )
    ),
    "products_are_right": broken(plan=lambda self, name, layer: OpPlan(backend=Halves())),
    "never_grows": broken(plan=lambda self, name, layer: OpPlan(backend=Boasts())),
    "final_model_stands_alone": broken(density=lambda self, name, step: Density(0.5, 0.5, 1.0)),
    "copies": broken(plan=lambda self, name, layer: OpPlan(weight_forward=Counts())),
    "leaves_the_rest_alone": broken(
        setup=lambda self, ctx: next(iter(ctx.layers.values())).weight.data.mul_(2) and None
    ),
}


def test_every_contract_has_a_method_that_breaks_it():
    assert set(FAULTS) == {contract.__name__ for contract in CONTRACTS}


def test_a_step_that_draws_by_a_number_of_python_is_not_to_be_replayed(monkeypatch):
    def draw(grad, site):
        return grad * (site.key % 2)

    faulty = broken(replayable=True, plan=lambda self, name, layer: OpPlan(grad_dgrad=draw))
    monkeypatch.setitem(registry._objects, ("method", "faulty"), faulty)
    result = next(result for result in check("faulty") if result.name == "replays")
    assert not result.passed
    assert "site.kernel_seed" in result.message


@pytest.mark.parametrize("contract", FAULTS)
def test_check_says_which_contract_a_faulty_method_breaks(contract, monkeypatch):
    monkeypatch.setitem(registry._objects, ("method", "faulty"), FAULTS[contract])
    results = {result.name: result for result in check("faulty")}
    assert not results[contract].passed, results
    assert results[contract].message
