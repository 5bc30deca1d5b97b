"""List scheduling, with times that can be worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.measure.prediction.schedule import Job, makespan, schedule


def test_trials_start_in_order_as_soon_as_a_device_is_free():
    jobs = [Job("a", 4), Job("b", 2), Job("c", 1), Job("d", 3)]
    assert schedule(jobs, 1, 2) == {"a": (0, 4), "b": (0, 2), "c": (2, 3), "d": (3, 6)}
    assert makespan(jobs, 2, 1) == 6
    assert makespan(jobs, 1, 1) == 10
    assert makespan(jobs, 4, 8) == 4


def test_a_trial_waits_for_those_that_it_depends_on():
    jobs = [Job("a", 4), Job("b", 1, after=("a", "done before")), Job("c", 1)]
    assert schedule(jobs, 1, 2) == {"a": (0, 4), "b": (4, 5), "c": (4, 5)}
    assert schedule(jobs, 1, 3)["c"] == (0, 1)


def test_ranks_stay_on_a_node_and_larger_trials_take_whole_nodes():
    jobs = [Job("one", 5), Job("four", 2, devices=4), Job("eight", 1, devices=5)]
    found = schedule(jobs, 2, 4)
    assert found["four"] == (0, 2)
    assert found["eight"] == (5, 6)
    with pytest.raises(ValueError, match="needs 9 devices, and there are 8"):
        schedule([Job("nine", 1, devices=9)], 2, 4)


def test_a_huge_cluster_takes_the_memory_of_the_trials_only():
    jobs = [Job("a", 4), Job("b", 2, devices=3), Job("c", 1, devices=1_500_000)]
    assert schedule(jobs, 999_999, 999_999) == {"a": (0, 4), "b": (0, 2), "c": (0, 1)}


def test_no_trials_take_no_time():
    assert makespan([], 3, 2) == 0


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=20), st.integers(1, 5), st.integers(1, 5))
def test_the_makespan_has_the_known_bounds(seconds, nodes, devices):
    jobs = [Job(index, value) for index, value in enumerate(seconds)]
    least = max(max(seconds), sum(seconds) / (nodes * devices))
    # Graham: list scheduling takes less than twice the optimum.
    assert least * (1 - 1e-9) <= makespan(jobs, nodes, devices) <= 2 * least
