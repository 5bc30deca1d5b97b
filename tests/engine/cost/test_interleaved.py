"""Times that are measured in turn."""

import pytest

from suite.engine.cost.interleaved import interleaved_ratio, interleaved_times


@pytest.mark.parametrize("last_begins", [False, True])
def test_the_order_alternates_from_pair_to_pair(last_begins):
    ran = []
    times = interleaved_times((lambda: ran.append("a"), lambda: ran.append("b")), 3, last_begins=last_begins)
    assert times.shape == (3, 2)
    orders = ["ab", "ab", "ba", "ab"] if not last_begins else ["ba", "ba", "ab", "ba"]  # the first is not measured
    assert "".join(ran) == "".join(orders)


def test_a_ratio_is_that_of_the_times_on_the_given_clock():
    class Stamps:
        def now(self):
            return done_at

        def seconds(self, first, second):
            return second - first

    done_at = 0.0

    def launch(seconds):
        def run():
            nonlocal done_at
            done_at += seconds

        return run

    ratio = interleaved_ratio(launch(0.5), launch(0.25), 4, Stamps())
    assert (ratio.median, ratio.first_s, ratio.second_s) == (2.0, 0.5, 0.25)
