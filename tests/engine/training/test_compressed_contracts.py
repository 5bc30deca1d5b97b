"""`check` on methods of a plugin whose transforms return compressed gradients."""

import dataclasses

import pytest
import torch
from compressing import CompressedBackend, largest

from suite import registry
from suite.engine.training.conformance import CONTRACTS, Broken, Subject
from suite.engine.training.conformance.contracts import density_is_true, products_are_right, transforms_are_pure
from suite.engine.training.product_check import WrongProduct
from suite.method import Density, Method, OpPlan


class Largest(Method):
    """Both gradients from the two largest of every eight channels."""

    def plan(self, name, layer):
        return OpPlan(grad_shared=largest(2, 8)) if layer.weight.shape[0] % 8 == 0 else None

    def density(self, name, ctx):
        return Density(1.0, 0.25, 0.25) if ctx.layers[name].weight.shape[0] % 8 == 0 else Density()


class Skipping(Largest):
    """The same with a backend that skips in the data gradient, which prunes on."""

    def plan(self, name, layer):
        plan = super().plan(name, layer)
        return plan and dataclasses.replace(plan, grad_dgrad=largest(1, 8), backend=CompressedBackend("dgrad"))

    def density(self, name, ctx):
        stated = super().density(name, ctx)
        return stated._replace(dgrad=stated.dgrad / 2) if stated.dgrad < 1 else stated


@pytest.fixture
def subject(monkeypatch):
    def make(method):
        monkeypatch.setitem(registry._objects, ("method", "plugin"), method)
        found = Subject("plugin", model="resnet9[width=0.0625]")
        sizes = {"epochs": 2, "batch_size": 32, "train_images": 64, "test_images": 32}
        found.recipe = dataclasses.replace(found.recipe, **sizes)
        return found

    return make


def test_methods_with_compressed_gradients_keep_every_contract(subject):
    found = subject(Skipping)
    for contract in CONTRACTS:
        if contract.__name__ != "trains":  # two steps are too few for that
            assert contract(found)
    found = subject(Largest)
    for contract in (transforms_are_pure, density_is_true):
        assert contract(found)


def spoilt(change):
    """Return `Skipping` whose transforms return channels that a function has changed."""

    def transform(n, m):
        def compress(grad, site):
            found = largest(n, m)(grad, site)
            return dataclasses.replace(found, channels=change(found.channels))

        return compress

    class Spoilt(Largest):
        def plan(self, name, layer):
            return OpPlan(grad_dgrad=transform(2, 8)) if layer.weight.shape[0] % 8 == 0 else None

    return Spoilt


@pytest.mark.parametrize(
    "change",
    [
        lambda channels: channels.flip(-1).contiguous(),
        lambda channels: channels // 2 * 2,  # the same channel twice, here and there
        lambda channels: torch.cat([torch.full_like(channels[..., :1], 8), channels[..., 1:]], -1).sort(-1).values,
    ],
    ids=["descending", "twice", "of the next group"],
)
def test_channels_that_are_not_those_of_their_groups_are_found(subject, change):
    with pytest.raises(
        Broken, match="returns a Compressed whose channels are not ascending, with 2 in each group of 8"
    ):
        transforms_are_pure(subject(spoilt(change)))


def test_a_density_that_the_compressed_gradient_exceeds_is_found(subject):
    class Boasts(Largest):
        def density(self, name, ctx):
            return Density(1.0, 0.2, 0.25)

    with pytest.raises(Broken, match=r"the data gradient needs 0\.2500 .* states dgrad=0\.2000"):
        density_is_true(subject(Boasts))


def test_a_wrong_product_of_a_compressed_gradient_is_found(subject):
    class Doubles(CompressedBackend):
        def dgrad(self, grad, weight, activation, geometry):
            found = super().dgrad(grad, weight, activation, geometry)
            return found if isinstance(grad, torch.Tensor) else found * 2

    class Wrong(Skipping):
        def plan(self, name, layer):
            plan = super().plan(name, layer)
            return plan and dataclasses.replace(plan, backend=Doubles("dgrad"))

    with pytest.raises(WrongProduct, match=r"its data gradient is wrong .* backend compressed"):
        products_are_right(subject(Wrong))
