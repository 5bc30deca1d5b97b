"""Tables and remarks of a group, checked with cells written by hand for a synthetic suite."""

from __future__ import annotations

from typing import Any

import pytest

from reports.content.build import build
from reports.data.records import read

pytestmark = pytest.mark.usefixtures("without_figures")
SDGP = "sdgp[n=2,m=4]"


def results(suite: Any) -> dict[str, list[Any]]:
    """Return the cells of accuracy and training time, by method.

    They are the seeds, the accuracy, its difference to dense, the time, and its ratio to dense.
    """
    (group,) = build(read(suite.write())).groups
    return {row[0].text: list(row[1:]) for row in group.tables[0].rows}


def texts(suite: Any, name: str) -> list[str]:
    return [cell.text for cell in results(suite)[name]]


def test_the_three_methods(suite: Any) -> None:
    suite.add_all()
    # Means 71.3 (variance 0.31) and 71.1333 (0.0233, less than dense's). The difference has the variance
    # (0.31 + 0.31) / 3 with 4 degrees of freedom (Satterthwaite): half-width 2.776 * 0.4546 = 1.26.
    # Ratios of its times: 391/372, 388/365, 395/379 = 1.0511, 1.0630, 1.0422; mean 1.0521.
    # The mean of their logarithms is 0.0507 ± 0.0245.
    assert [texts(suite, SDGP)[index] for index in (0, 2, 4)] == ["3", "−0.2 ± 1.3", "1.05 [1.03, 1.08]"]
    # prunetrain's variance, 0.2433, is less than dense's, too.
    assert [texts(suite, "prunetrain[ratio=0.2]")[index] for index in (2, 4)] == ["−2.9 ± 1.3", "0.80 [0.75, 0.86]"]
    assert texts(suite, "dense")[1] == "71.3 ± 1.4"
    assert texts(suite, "dense")[3].startswith("6 min 12 s")
    relative = {
        row[0].text: [cell.text for cell in row[1:5]] for row in build(read(suite.folder)).groups[0].tables[1].rows
    }
    # Effective is 5/6 of dense, executed all of it.
    assert relative[SDGP][:2] == ["1.00", "0.83"]
    # Executed: squares of 1, 0.875, 0.75, 0.75, 0.5 make 3.140625 of 5. Half of the channels: a quarter of inference.
    assert (relative["prunetrain[ratio=0.2]"][0], relative["prunetrain[ratio=0.2]"][2]) == ("0.63", "0.25")


def test_one_seed_has_no_interval(suite: Any) -> None:
    suite.add_all(("dense", "sdgp"), seeds=1)
    assert texts(suite, SDGP)[:3] == ["1", "71.00", "−0.20"]
    assert texts(suite, SDGP)[4] == "1.05"


def test_failed_trials_are_counted_and_named(suite: Any) -> None:
    suite.add_all(("dense", "sdgp"), seeds=2)
    before = texts(suite, SDGP)[1:]
    suite.add("sdgp", 2, accuracy=10.0, time=1.0, status="diverged", message="NaN")
    suite.add("never", 0, accuracy=None, time=None, status="oom", message="out of memory")
    found = results(suite)
    assert (found[SDGP][0].text, found[SDGP][0].note) == ("2 of 3", "Not done: 1 diverged.")
    assert texts(suite, SDGP)[1:] == before  # the numbers of a failed trial do not count
    assert [cell.text for cell in found["never"]] == ["0 of 1", *"––––"]


def test_without_dense_there_is_no_comparison(suite: Any) -> None:
    suite.add_all(("sdgp",))
    assert results(suite)[SDGP][4].note == "Dense was not run here."
    suite.add("dense", 0, accuracy=None, time=None, status="diverged", message="the loss is nan")
    assert results(suite)[SDGP][4].note == "No dense trial is done."


def test_a_narrowed_dense_is_no_baseline(suite: Any) -> None:
    suite.add_all(("dense",))
    suite.add("dense", 0, accuracy=60.0, time=100.0, variant="match=prunetrain")
    assert texts(suite, "dense[match=prunetrain]")[2] == "−11.30"
    assert texts(suite, "dense")[1] == "71.3 ± 1.4"


@pytest.mark.parametrize("seeds", [(5, 6, 7), (0, 6, 7)])
def test_times_of_seeds_that_dense_lacks_are_not_paired(suite: Any, seeds: tuple[int, ...]) -> None:
    suite.add_all(("dense",))
    for seed in seeds:
        suite.add("other", seed, accuracy=70.0, time=400.0)
    ratio = results(suite)["other"][4]
    if 0 in seeds:
        assert (ratio.text, ratio.note) == ("1.08", "from 1 of 3 seeds")
    else:
        assert ratio.note.startswith("No seed in common with dense")


@pytest.mark.parametrize(("time", "explained"), [(300.0, True), (290.0, False), (400.0, True)])
def test_a_time_that_flops_do_not_explain_is_marked(suite: Any, time: float, explained: bool) -> None:
    suite.add_all(("dense",), seeds=1)
    # Effective is 5/6 of dense; 290 s are 0.78 of dense's 372 s, 300 s are 0.81.
    suite.add("sdgp", 0, accuracy=70.0, time=time)
    assert ("Less than its FLOPs explain" in results(suite)[SDGP][4].note) is not explained


def test_equal_ratios_on_a_few_seeds_have_no_interval(suite: Any) -> None:
    for seed, accuracy in enumerate((71.2, 71.9)):
        suite.add("dense", seed, accuracy=accuracy, time=372.0)
        suite.add("other", seed, accuracy=accuracy - 0.3, time=372.0 * 1.1)
    assert texts(suite, "other")[4] == "1.10"


@pytest.mark.parametrize(
    ("spec", "what"), [({"depends_on": {"dense": "dense-x"}}, "dense"), ({"files": {"start": "ab"}}, "the file start")]
)
def test_the_cost_of_prerequisites_is_named_as_not_included(suite: Any, spec: dict[str, Any], what: str) -> None:
    suite.add_all(("dense",))
    suite.add("later", 0, accuracy=70.0, time=400.0, spec=spec)
    (group,) = build(read(suite.write())).groups
    assert f"later starts from the result of {what}, whose cost is not included." in group.remarks
