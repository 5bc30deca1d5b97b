"""Lower bounds of products from known rates, and the measured rates of this machine."""

import pytest
import torch

from suite.engine.cost import roofline
from suite.engine.cost.roofline import Machine, measure_machine, moved_bytes

MACHINE = Machine(macs_per_s=1e9, copies=((1000, 4e6), (10_000, 2e6), (100_000, 1e6)))


def test_the_slower_of_compute_and_memory_is_the_bound():
    assert MACHINE.bound(2e9, 10_000).seconds == pytest.approx(2.0)
    assert MACHINE.bound(2e9, 10_000).by == "multiply-adds"
    bound = MACHINE.bound(1e3, 10_000)
    assert (bound.seconds, bound.by) == (pytest.approx(0.005), "bytes")


@pytest.mark.parametrize(("size", "rate"), [(10, 4e6), (1000, 4e6), (9999, 4e6), (10_000, 2e6), (1e9, 1e6)])
def test_a_product_is_compared_with_a_copy_that_is_not_larger(size, rate):
    """A smaller copy may be faster, so that the bound stays one."""
    assert MACHINE.rate(size) == rate


def test_the_rate_is_the_highest_of_larger_copies():
    assert Machine(1.0, ((1000, 1.0), (10_000, 5.0), (100_000, 3.0))).rate(2000) == 5.0


def test_the_better_of_two_measurements_counts():
    other = Machine(macs_per_s=2e9, copies=((1000, 3e6), (10_000, 3e6), (100_000, 1e6)))
    assert MACHINE.better(other) == Machine(2e9, ((1000, 4e6), (10_000, 3e6), (100_000, 1e6)))


def test_skipped_operands_are_not_read():
    assert moved_bytes(skipped=100, other=10, result=1, executed=0.25, itemsize=4) == 4 * 36


def test_rates_are_measured(monkeypatch):
    monkeypatch.setitem(roofline.SIDE, "cpu", 32)
    monkeypatch.setattr(roofline, "COPIES", (2**12, 2**14))
    before = torch.backends.cuda.matmul.allow_tf32
    found = measure_machine(torch.device("cpu"), torch.float32)
    assert found.macs_per_s > 0
    assert [size for size, _ in found.copies] == [2**12, 2**14]
    assert all(rate > 0 for _, rate in found.copies)
    assert torch.backends.cuda.matmul.allow_tf32 == before
