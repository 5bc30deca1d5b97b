"""The backend that skips masked weights: its bias, and how long it keeps an output gradient."""

import pytest
import torch

from kernels.sparse_conv.dispatch import available
from methods.backends.per_gradient import PerGradient
from methods.backends.sparse_convolution import Skipping
from suite.method import Geometry
from suite.ops import TORCH

pytestmark = pytest.mark.skipif(not available(torch.device("cpu")), reason="no kernels that skip weights")


def test_a_bias_is_added_and_has_its_gradient():
    torch.manual_seed(0)
    kept = torch.rand(6, 4, 3, 3) > 0.5
    weight, bias, geometry = torch.randn(6, 4, 3, 3) * kept, torch.randn(6), Geometry("conv", (2, 1), (1, 1))
    activation = torch.randn(3, 4, 8, 7)
    backend = Skipping(kept, geometry)
    out = backend.forward(activation, weight, bias, geometry)
    torch.testing.assert_close(out, TORCH.forward(activation, weight, bias, geometry), rtol=1e-4, atol=1e-4)
    grad = torch.randn_like(out)
    ours = backend.wgrad(grad, activation, weight, geometry, True)
    theirs = TORCH.wgrad(grad, activation, weight, geometry, True)
    torch.testing.assert_close(ours[0], theirs[0] * kept, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-4, atol=1e-4)


def test_what_is_made_of_a_gradient_is_made_once_for_its_two_products_and_then_let_go():
    made = []
    of = PerGradient()
    grad = torch.zeros(2)

    def make():
        made.append(grad.clone())
        return made[-1]

    assert of.of(grad, make) is of.of(grad, make)
    assert len(made) == 1
    of.of(grad, make)  # a third asks for the next step's
    assert len(made) == 2
    other = grad.clone()
    of.of(other, make)
    assert len(made) == 3


def test_a_gradient_that_was_overwritten_is_another():
    of = PerGradient()
    grad = torch.ones(2)
    of.of(grad, grad.clone)
    grad.fill_(3.0)
    assert torch.equal(of.of(grad, grad.clone), torch.full((2,), 3.0))


def test_nothing_is_kept_of_a_gradient_that_is_gone():
    of = PerGradient()
    grad = torch.ones(2)
    of.of(grad, lambda: "made of it")
    del grad
    assert of._made is None
