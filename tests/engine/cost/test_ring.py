"""The ring all-reduce model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.engine.cost.paper_conventions import gradient_bytes, relative_traffic, sent_bytes


@pytest.mark.parametrize(("processes", "payloads"), [(1, 0.0), (2, 1.0), (3, 4 / 3), (8, 7 / 4)])
def test_a_process_sends_its_share_in_each_of_two_rounds_to_all_others(processes: int, payloads: float) -> None:
    assert sent_bytes(1000.0, processes) == pytest.approx(1000.0 * payloads)


@given(st.integers(1, 10**9), st.integers(1, 512))
def test_less_than_two_payloads_are_sent(elements: int, processes: int) -> None:
    payload = gradient_bytes(elements)
    assert payload == 4 * elements
    assert 0 <= sent_bytes(payload, processes) < 2 * payload


def test_relative_traffic_counts_smaller_networks_and_fewer_steps() -> None:
    assert relative_traffic([(100, 10)], 100, 10) == 1
    assert relative_traffic([(100, 5), (50, 5)], 100, 10) == pytest.approx(0.75)
    assert relative_traffic([(50, 5)], 100, 10) == pytest.approx(0.25)


@pytest.mark.parametrize(
    "call",
    [lambda: sent_bytes(1, 0), lambda: relative_traffic([(1, 1)], 0, 5)],
)
def test_impossible_values_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match=r"process|dense"):
        call()  # type: ignore[operator]
