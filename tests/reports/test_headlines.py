"""Rules of headlines, checked with sentences written by hand for a synthetic suite."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from small_trials import recorded

from reports.content.build import build
from reports.content.remarks import _prerequisites
from reports.data.records import read

pytestmark = pytest.mark.usefixtures("without_figures")


def sentences(suite: Any) -> dict[str, str]:
    """Return the headlines of a suite with one group, by method."""
    (group,) = build(read(suite.write())).groups
    return {headline.name: headline.text for headline in group.headlines}


def test_the_three_methods(suite: Any) -> None:
    suite.add_all()
    found = sentences(suite)
    # Means 71.3 (variance 0.31) and 71.1333 (0.0233, less than dense's). The difference has the variance
    # (0.31 + 0.31) / 3 with 4 degrees of freedom (Satterthwaite): half-width 2.776 * 0.4546 = 1.26.
    # Ratios of its times: 391/372, 388/365, 395/379 = 1.0511, 1.0630, 1.0422; mean 1.0521.
    # The mean of their logarithms is 0.0507 ± 0.0245.
    # Effective is 5/6 of dense, executed all of it.
    assert found["sdgp[n=2,m=4]"] == (
        "3 seeds: the accuracy is not distinguishable from dense (−0.2 ± 1.3 points). The measured training time is "
        "1.05 [1.03, 1.08] × dense, longer. Kernels that skip all they could would execute 0.83 × dense's training "
        "FLOPs, but no kernel here skipped any."
    )
    # prunetrain's variance, 0.2433, is less than dense's, too. Executed: squares of
    # 1, 0.875, 0.75, 0.75, 0.5 make 3.140625 of 5, 37 % are saved. Half of the channels: a quarter of inference.
    assert found["prunetrain[ratio=0.2]"] == (
        "3 seeds: the accuracy is 2.9 ± 1.3 points below dense. The measured training time is 0.80 [0.75, 0.86] × "
        "dense, shorter. The method executed 0.63 × dense's training FLOPs. The final model needs 0.25 × dense's "
        "inference FLOPs."
    )
    assert found["dense"].startswith("3 seeds: the accuracy is 71.3 ± 1.4 %. The measured training time is 6 min 12 s")


def test_one_seed_says_so_and_claims_no_interval(suite: Any) -> None:
    suite.add_all(("dense", "sdgp"), seeds=1)
    found = sentences(suite)["sdgp[n=2,m=4]"]
    assert found.startswith(
        "1 seed, no interval: the accuracy is 0.20 points below dense (on 1 seed, no interval). The measured training "
        "time is 1.05"
    )
    assert "±" not in found
    assert "distinguishable" not in found


def test_a_time_whose_interval_covers_one_is_not_distinguishable(suite: Any) -> None:
    suite.add_all(("dense",))
    for seed, time in enumerate((372.0 * 0.9, 365.0 * 1.1, 379.0 * 1.0)):
        suite.add("noisy", seed, accuracy=71.0, time=time)
    assert "training time is not distinguishable from dense (1.0 [0.8, 1.3] × dense)" in sentences(suite)["noisy"]


def test_partial_skipping_is_distinguished_from_no_skipping(suite: Any) -> None:
    suite.add_all(("dense",))
    total = {"train_flops_dense": 1e12, "train_flops_current": 1e12}
    for seed in range(2):
        suite.add(
            "partly",
            seed,
            accuracy=71.0,
            time=300.0,
            train_flops_executed=0.7e12,
            train_flops_effective=0.5e12,
            **total,
        )
    found = sentences(suite)["partly"]
    assert "executed 0.70 × dense's training FLOPs. Kernels that skip all they could would execute 0.50 ×" in found
    assert "but no kernel here skipped these" in found


def test_failed_trials_are_named_before_any_number(suite: Any) -> None:
    suite.add_all(("dense", "sdgp"), seeds=2)
    suite.add("sdgp", 2, accuracy=None, time=None, status="diverged", message="NaN")
    suite.add("never", 0, accuracy=None, time=None, status="oom", message="out of memory")
    found = sentences(suite)
    assert found["sdgp[n=2,m=4]"].startswith("2 seeds (1 diverged of 3 trials, not included in any number here):")
    assert found["never"] == "No trial is done (1 oom of 1 trials), so there are no numbers."


def test_a_diverged_trial_with_a_result_does_not_count(suite: Any) -> None:
    suite.add_all(("dense", "sdgp"), seeds=2)
    suite.add("dense", 2, accuracy=71.0, time=370.0)
    before = sentences(suite)
    suite.add("sdgp", 2, accuracy=10.0, time=1.0, status="diverged", message="NaN")
    after = sentences(suite)
    assert after["sdgp[n=2,m=4]"].split(": ", 1)[1] == before["sdgp[n=2,m=4]"].split(": ", 1)[1]


def test_without_dense_there_is_no_comparison(suite: Any) -> None:
    suite.add_all(("sdgp",))
    found = sentences(suite)["sdgp[n=2,m=4]"]
    assert "not compared with dense (dense was not run here)" in found
    assert "× dense " not in found


def test_a_narrowed_dense_is_no_baseline(suite: Any) -> None:
    suite.add_all(("dense",))
    suite.add("dense", 0, accuracy=60.0, time=100.0, variant="match=prunetrain")
    found = sentences(suite)
    assert "the accuracy is 11.30 points below dense (on 1 seed, no interval)" in found["dense[match=prunetrain]"]
    assert "71.3 ± 1.4 %" in found["dense"]


@pytest.mark.parametrize("seeds", [(5, 6, 7), (0, 6, 7)])
def test_times_of_seeds_that_dense_lacks_are_not_paired(suite: Any, seeds: tuple[int, ...]) -> None:
    suite.add_all(("dense",))
    for seed in seeds:
        suite.add("other", seed, accuracy=70.0, time=400.0)
    found = sentences(suite)["other"]
    if 0 in seeds:
        assert "measured training time is 1.08 × dense (on 1 seed, no interval)" in found
    else:
        assert "not compared with dense (no seed in common with dense" in found


@pytest.mark.parametrize(("time", "explained"), [(300.0, True), (290.0, False), (400.0, True)])
def test_a_time_that_flops_do_not_explain_is_marked(suite: Any, time: float, explained: bool) -> None:
    suite.add_all(("dense",), seeds=1)
    # Effective is 5/6 of dense; 290 s are 0.78 of dense's 372 s, 300 s are 0.81.
    suite.add("sdgp", 0, accuracy=70.0, time=time)
    assert ("less than its FLOPs explain" in sentences(suite)["sdgp[n=2,m=4]"]) is not explained


def test_a_failed_dense_is_not_reported_as_absent(suite: Any) -> None:
    suite.add_all(("sdgp",))
    suite.add("dense", 0, accuracy=None, time=None, status="diverged", message="the loss is nan")
    assert "not compared with dense (no dense trial is done)" in sentences(suite)["sdgp[n=2,m=4]"]


def test_equal_differences_on_a_few_seeds_have_no_interval(suite: Any) -> None:
    for seed, accuracy in enumerate((71.2, 71.9)):
        suite.add("dense", seed, accuracy=accuracy, time=372.0)
        suite.add("other", seed, accuracy=accuracy - 0.3, time=372.0 * 1.1)
    found = sentences(suite)["other"]
    assert "measured training time is 1.10 × dense (the same on 2 of 2 seeds, no interval)" in found


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({}, None),
        ({"depends_on": {"dense": "dense-x"}}, "dense"),
        ({"files": {"from_trained": "ab"}}, "the file from_trained"),
    ],
)
def test_the_cost_of_prerequisites_is_named_as_not_included(spec: dict[str, Any], what: str | None) -> None:
    row: Any = SimpleNamespace(done=[recorded(**spec)])
    sentence = f"the method starts from the result of {what}, whose cost is not included"
    assert _prerequisites(row) == [sentence][: bool(what)]
