"""The ring all-reduce model, against a simulation of the exchanges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.engine.cost.ring import gradient_bytes, relative_traffic, sent_bytes


def simulate(values: list[list[float]]) -> tuple[list[list[float]], int]:
    """Carry out a ring all-reduce of p vectors of p parts; return the results and the parts that process 0 sent."""
    p, held, sent = len(values), [list(vector) for vector in values], 0
    for exchange in range(2 * (p - 1)):
        moved = []
        for rank in range(p):
            part = (rank - exchange) % p if exchange < p - 1 else (rank + 1 - (exchange - (p - 1))) % p
            moved.append(((rank + 1) % p, part, held[rank][part]))
            sent += rank == 0
        for target, part, value in moved:
            held[target][part] = held[target][part] + value if exchange < p - 1 else value
    return held, sent


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_a_process_sends_what_the_exchanges_of_a_ring_send(processes: int) -> None:
    values = [[float(10 * rank + part) for part in range(processes)] for rank in range(processes)]
    held, parts = simulate(values)
    total = [sum(column) for column in zip(*values, strict=True)]
    assert held == [total] * processes
    payload = 1000.0 * processes
    assert sent_bytes(payload, processes) == pytest.approx(parts * 1000.0)


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
