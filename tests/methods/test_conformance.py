"""Every registered method keeps every contract; new methods are checked once they are registered."""

import functools
import re
from types import SimpleNamespace

import pytest
import torch
from small_subject import small

from suite import registry
from suite.engine.network.products import TorchBackend
from suite.engine.training.conformance import CONTRACTS, Broken, check
from suite.engine.training.conformance import subject as sizes
from suite.engine.training.conformance.check import _examine as examine
from suite.engine.training.conformance.contracts import density_is_true, trains
from suite.method import Density, Method, OpPlan

VARIANTS = {
    "sdgp": (
        {},
        {"mode": "random"},
        {"mode": "magnitude", "n": 1, "m": 8},
        {"scope": "group", "layers": "all"},
        {"products": "both", "mode": "unbiased", "n": 3, "m": 8, "layers": "all"},
    ),
    "prunetrain": (
        {"ratio": 0.5, "threshold": 0.2},
        {"update": "proximal", "coefficient": "size", "zeroing": "removed", "selection": "random"},
        {"gating": True, "round_to": 4, "dynamic_batch": "start"},
    ),
    "ssprop": ({}, {"schedule": "constant", "mode": "random", "layers": "all", "keep": 0.5, "round_to": 4}),
    "gmp": ({}, {"backend": "skipping"}, {"mode": "random", "distribution": "erdos_renyi", "initial": 0.3}),
    "rigl": (
        {"backend": "skipping"},
        {"grow": "random"},
        {"grow": "random", "drop": "random", "distribution": "uniform"},
    ),
    "dense": ({}, {"match": "prunetrain"}),
    "oneshot": ({"at": 0.5, "ratio": 0.5, "threshold": 0.2},),
    "ssl": ({"ratio": 0.5, "threshold": 0.2},),
    "slimming": ({}, {"round_to": 4, "penalty_after": True, "momentum": "kept", "selection": "random"}),
    "earlybird": ({"look_every": 0.06}, {"look_every": 0.05, "distance": 0.5, "round_to": 4}),
    "gradual_channels": ({}, {"schedule": "cubic", "end": 0.6, "round_to": 4, "selection": "random"}),
    "clicktrain": (
        {},
        {"pool": "dynamic", "scope": "filter", "batches": 3, "mask_momentum": True, "mixup": 0.3},
        {"backend": "skipping"},
        {"backend": "masked", "pool": 12, "balance": "filter", "schedule": "paper", "selection": "random"},
    ),
}
pytestmark = pytest.mark.usefixtures("tiny_residual")
CONTRACT = {contract.__name__: contract for contract in CONTRACTS}
CASES = [
    pytest.param(name, index, marks=pytest.mark.slow if index else [])
    for name in registry.names("method")
    for index in range(len(VARIANTS.get(name, ({},))))
]


@functools.cache
def subject(name, index):
    model = "resnet9[width=0.125]" if index else "tiny_residual"
    epochs = 3 if index or name == "clicktrain" else 2  # which masks weights from the third on
    return small(name, VARIANTS.get(name, ({},))[index], epochs, model)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
@pytest.mark.parametrize(("name", "index"), CASES)
def test_contract(name, index, contract):
    assert contract(subject(name, index))


def broken(**members):
    """Return a method with one fault."""
    return type("Faulty", (Method,), {"__annotations__": {}, **members})


def halve(weight, site):
    return weight * (weight.abs() > weight.abs().median())


def zero_in_place(grad, site):
    return grad.mul_(0.5)


class Boasts(TorchBackend):
    """A backend that states twice the executed multiply-adds."""

    def executed(self, product, grad, weight, geometry):
        return 2.0


class Halves(TorchBackend):
    """A backend whose weight gradient is half of the correct one."""

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
        density=lambda self, name, ctx: Density(0.1, 0.1, 1.0),
    ),
    "trains": broken(regularization=lambda self, model, ctx: next(model.parameters()).sum() * float("nan")),
    "resumes": broken(
        before_optimizer_step=lambda self, ctx: (
            setattr(self, "n", getattr(self, "n", 0) + 1)
            or ([p.grad.mul_(1 + self.n / 10) for p in ctx.model.parameters()] and None)
        )
    ),
    "products_are_right": broken(plan=lambda self, name, layer: OpPlan(backend=Halves())),
    "kept_gradients_suffice": broken(
        setup=lambda self, ctx: setattr(
            self, "masks", {name: torch.zeros_like(layer.weight).bool() for name, layer in ctx.layers.items()}
        ),
        kept_gradients=lambda self, ctx: self.masks,
    ),
    "never_grows": broken(plan=lambda self, name, layer: OpPlan(backend=Boasts())),
    "final_model_stands_alone": broken(density=lambda self, name, ctx: Density(0.5, 0.5, 1.0)),
    "copies": broken(plan=lambda self, name, layer: OpPlan(weight_forward=Counts())),
    "leaves_the_rest_alone": broken(
        setup=lambda self, ctx: next(iter(ctx.layers.values())).weight.data.mul_(2) and None
    ),
}


def test_every_contract_has_a_method_that_breaks_it():
    assert FAULTS.keys() == CONTRACT.keys()


def test_a_step_that_draws_by_a_number_of_python_is_not_to_be_replayed(monkeypatch):
    def draw(grad, site):
        return grad * (site.key % 2)

    faulty = broken(replayable=True, plan=lambda self, name, layer: OpPlan(grad_dgrad=draw))
    monkeypatch.setitem(registry._objects, ("method", "faulty"), faulty)
    result = examine(CONTRACT["replays"], small("faulty"))
    assert not result.passed
    assert "site.kernel_seed" in result.message


def mask_odd(weight, site):
    return weight * (torch.arange(weight.numel()).view_as(weight) % 2)


def drop_half(grad, site):
    kept = torch.rand(grad.shape[:2], generator=site.generator()) < 0.5
    return grad * kept.view(*kept.shape, *[1] * (grad.ndim - 2))


class Late(Method):
    """Masks weights from the third epoch on, but states the density from the second."""

    def setup(self, ctx):
        self.masked = False

    def plan(self, name, layer):
        return OpPlan(weight_forward=mask_odd) if self.masked else None

    def on_epoch_end(self, ctx):
        self.masked = ctx.epochs_done >= 2
        ctx.replan()

    def density(self, name, ctx):
        return Density(0.5, 0.5, 1.0) if ctx.step >= 4 else Density()


WRONG_DENSITIES = {
    "no gradient of masked weights": (
        broken(
            plan=lambda self, name, layer: OpPlan(weight_forward=mask_odd),
            density=lambda self, name, ctx: Density(0.5, 0.0, 0.0),
        ),
        "'0', step 0: the weight gradient needs 1.0000 of its multiply-adds, but density states wgrad=0.0000",
    ),
    "too little of the data gradient": (
        broken(
            plan=lambda self, name, layer: OpPlan(weight_forward=mask_odd),
            density=lambda self, name, ctx: Density(0.5, 0.25, 1.0),
        ),
        "the data gradient needs 0.5000",
    ),
    "a mask that begins later than stated": (Late, "step 4: the forward needs 1.0000"),
    "a share that is random": (
        broken(
            plan=lambda self, name, layer: OpPlan(grad_dgrad=drop_half),
            density=lambda self, name, ctx: Density(dgrad=0.4),
        ),
        "the data gradient needs",
    ),
    "no number": (broken(density=lambda self, name, ctx: Density(1.5)), "is Density(forward=1.5"),
}


@pytest.mark.parametrize("case", WRONG_DENSITIES)
def test_a_wrong_density_is_found_in_whichever_step_and_product(case, monkeypatch):
    faulty, message = WRONG_DENSITIES[case]
    monkeypatch.setitem(registry._objects, ("method", "faulty"), faulty)
    with pytest.raises(Broken, match=re.escape(message)):
        density_is_true(small("faulty", epochs=2))


RIGHT_DENSITIES = {
    "both operands of the data gradient": broken(
        plan=lambda self, name, layer: OpPlan(weight_forward=mask_odd, grad_dgrad=drop_half),
        density=lambda self, name, ctx: Density(0.5, 0.25, 1.0),
    ),
    "from when the mask begins": type(
        "OnTime",
        (Late,),
        {"density": lambda self, name, ctx: Density(0.5, 0.5, 1) if ctx.step >= 8 else Density()},
    ),
}


@pytest.mark.parametrize("case", RIGHT_DENSITIES)
def test_a_right_density_passes_random_or_not(case, monkeypatch):
    monkeypatch.setitem(registry._objects, ("method", "faulty"), RIGHT_DENSITIES[case])
    assert "12 steps" in density_is_true(small("faulty"))


@pytest.mark.parametrize("contract", FAULTS)
def test_a_contract_finds_the_method_that_breaks_it(contract, monkeypatch):
    monkeypatch.setitem(registry._objects, ("method", "faulty"), FAULTS[contract])
    result = examine(CONTRACT[contract], small("faulty", epochs=2))
    assert not result.passed
    assert result.message


@pytest.mark.parametrize(("accuracy", "says"), [(0.1, True), (0.16, True), (0.25, False)])
def test_check_says_when_a_network_guesses(accuracy, says):
    records = [{"train_loss": loss, "test_accuracy": accuracy} for loss in (2.3, 2.2)]
    trainer = SimpleNamespace(ctx=SimpleNamespace(num_classes=10))
    splits = SimpleNamespace(test=SimpleNamespace(num_samples=100))
    message = trains(SimpleNamespace(undisturbed=(trainer, records, []), splits=splits))
    assert ("no more than guessing among 10 classes reaches: the network has learned nothing" in message) is says


def test_check_says_which_contract_a_faulty_method_breaks(monkeypatch):
    monkeypatch.setitem(registry._objects, ("method", "faulty"), FAULTS["transforms_are_pure"])
    for size, number in (("EPOCHS", 2), ("BATCH_SIZE", 8), ("TRAIN_IMAGES", 64), ("TEST_IMAGES", 50)):
        monkeypatch.setattr(sizes, size, number)
    results = {result.name: result for result in check("faulty", model="tiny_residual")}
    assert results.keys() == CONTRACT.keys()
    assert not results["transforms_are_pure"].passed
    assert results["trains"].passed
