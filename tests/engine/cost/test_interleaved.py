"""Times that are measured in turn."""

import pytest
import torch

from suite.engine.cost.clock import stamps_of
from suite.engine.cost.interleaved import interleaved_ratio, interleaved_times


@pytest.mark.parametrize("last_begins", [False, True])
def test_the_order_alternates_from_pair_to_pair(last_begins):
    ran = []
    times = interleaved_times((lambda: ran.append("a"), lambda: ran.append("b")), 3, last_begins=last_begins)
    assert times.shape == (3, 2)
    orders = ["ab", "ab", "ba", "ab"] if not last_begins else ["ba", "ba", "ab", "ba"]  # the first is not measured
    assert "".join(ran) == "".join(orders)


def test_asynchronous_work_is_included_in_the_time(monkeypatch):
    """A measured call only launches work; the clock must wait until the device has finished it."""
    done_at = 0.0

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            self.waited = False

        def record(self, stream):
            assert stream == ("stream of", torch.device("cuda", 1))
            self.at = done_at

        def synchronize(self):
            self.waited = True

        def elapsed_time(self, later):
            assert later.waited
            return 1e3 * (later.at - self.at)

    def launch(seconds):
        def run():
            nonlocal done_at
            done_at += seconds

        return run

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream of", device))
    ratio = interleaved_ratio(launch(0.5), launch(0.25), 4, stamps_of(torch.device("cuda", 1)))
    assert (ratio.median, ratio.first_s, ratio.second_s) == (2.0, 0.5, 0.25)
