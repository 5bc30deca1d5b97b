"""SDGP's Fig. 4, 6, 7 and 10 from invented trials: what they compute, and what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from reproduced_files import page
from small_trials import recorded

from reports.data.estimates import Missing
from reports.papers import gradients
from reports.papers.contract import ReproductionData
from reports.papers.over_epochs import mean_accuracies, step_factor


def trial(seed, accuracies, losses=(), pace=1.0):
    records = tuple(
        {
            "epoch": number,
            "epochs_left": len(accuracies) - number,
            "test_accuracy": accuracy,
            "train_loss": (losses or accuracies)[number - 1],
            "train_time_s": 10 * pace * number,
        }
        for number, accuracy in enumerate(accuracies, 1)
    )
    return recorded({"test_accuracy": accuracies[-1]}, epochs=records, seed=seed)


def data_of(part, trials):
    return ReproductionData(Path("nowhere"), {part: trials}, {}, "cpu")


def lines_of(outcome):
    return {one.quantity: one for one in outcome.comparisons}


@pytest.fixture
def columns():
    return data_of(
        "cifar10",
        {
            "dense": (trial(0, (0.4, 0.6, 0.8, 0.9), (2.0, 1.0, 0.8, 0.6)),),
            "sdgp[n=2,m=4,mode=random]": (trial(0, (0.2, 0.6, 0.7, 0.8), (2.2, 1.2, 0.7, 0.7)),),
            "sdgp[n=2,m=4,mode=magnitude]": (trial(1, (0.2, 0.6), (2.2, 1.2)),),
        },
    )


def test_epochs_without_an_evaluation_are_left_out_of_means():
    found = trial(0, (0.2, None, 0.4, None, 0.9))
    assert mean_accuracies(found) == pytest.approx({"mean_accuracy": 0.5, "late_accuracy": 0.65})  # epochs 3 to 5
    assert mean_accuracies(trial(0, (0.2, None))) == {"mean_accuracy": 0.2}


@pytest.mark.usefixtures("drawn")
def test_figure_6_compares_the_losses_of_all_epochs(columns):
    outcome = page("sdgp-fig6").outcome(columns)
    found = lines_of(outcome)
    assert found["training loss of the last epoch, dense"].ours.mean == 0.6
    assert found["training loss, mean of all epochs, random minus dense"].ours.mean == pytest.approx(0.1)
    assert found["epochs with a higher training loss than dense, random"].ours.mean == 75.0
    other = found["epochs with a higher training loss than dense, magnitude"].ours
    assert isinstance(other, Missing)  # dense of its seed was not run
    assert not any(one.published for one in outcome.comparisons)  # the paper has only a picture
    assert "no value was read off it" in outcome.remarks[0]


@pytest.mark.usefixtures("drawn")
def test_figure_7_compares_the_end_with_table_1_and_the_course_with_dense(columns):
    found = lines_of(page("sdgp-fig7").outcome(columns))
    random = found["random minus dense"]
    assert (random.ours.mean, random.published) == (pytest.approx(-10.0), -0.8)
    assert found["accuracy, dense"].published == 95.3
    assert found["mean accuracy of all epochs, random minus dense"].ours.mean == pytest.approx(-10.0)
    late = found["mean accuracy of the second half of the epochs, random minus dense"]
    assert late.ours.mean == pytest.approx(-10.0)
    assert late.published is None


def test_the_model_of_time_is_the_papers():
    share = 0.3331
    assert step_factor("dense", share) == 1
    assert step_factor("4:32", share) == pytest.approx(1 - share + share / 8)
    assert step_factor("16:32", share) == step_factor("2:4", share)
    assert step_factor("16:32", share) / step_factor("4:32", share) == pytest.approx(1.176, abs=1e-3)


@pytest.mark.usefixtures("drawn")
def test_figure_10_gives_the_time_until_the_target_and_counts_seeds_that_missed_it():
    dense = (0.3, 0.6, 0.8, 0.9)  # the target is 0.892
    late = (0.3, 0.6, 0.7, 0.8)
    trials = {
        "dense": tuple(trial(seed, dense) for seed in range(3)),
        "sdgp[n=2,m=4,mode=rescaled]": tuple(trial(seed, dense, pace=1.1) for seed in range(3)),
        "sdgp[n=16,m=32,mode=rescaled]": tuple(trial(seed, dense, pace=1.2) for seed in range(3)),
        "sdgp[n=8,m=32,mode=rescaled]": (trial(0, dense), trial(1, late), trial(2, late)),
        "sdgp[n=4,m=32,mode=rescaled]": (
            trial(0, (0.3, 0.6, 0.9, 0.9)),
            trial(1, (0.3, 0.6, 0.9, 0.8)),
            trial(2, late),
        ),
    }
    outcome = page("sdgp-fig10").outcome(data_of("settings", trials))
    found = lines_of(outcome)
    assert found["target accuracy"].ours.mean == pytest.approx(89.2)
    assert found["epochs to the target, dense"].ours.mean == 4
    assert found["epochs to the target, 4:32"].ours.mean == 3  # of 3, 3 and never
    missed = found["epochs to the target, 8:32"].ours
    assert missed.reason == "not reached within 4 epochs (1 of 3 seeds)"
    share = found["time to the target, 4:32, of dense's whole training"]
    assert (share.ours.mean, share.kind) == (pytest.approx(75 * (1 - 0.3331 * 7 / 8)), "modelled")
    assert found["time to the target, 4:32"].ours.mean == 30.0
    modelled = found["speed-up to the target of 4:32 over 16:32"]
    assert modelled.published == 27
    assert modelled.ours.mean == pytest.approx(100 * (4 * 0.83345 / (3 * 0.70853750) - 1))
    assert found["speed-up to the target of 4:32 over 16:32, measured"].ours.mean == pytest.approx(60.0)
    equal = found["speed-up to the target of 4:32 over 2:4, if both took as many epochs"]
    assert equal.ours.mean == pytest.approx(17.6, abs=0.05)
    assert found["share of the data gradient left at 4:32"].published == 4.16
    assert found["share of the data gradient left at 4:32"].ours.mean == pytest.approx(4.16, abs=0.005)
    assert "not used to choose anything" in outcome.remarks[0]


def test_figure_10_without_dense_has_no_target():
    (line,) = page("sdgp-fig10").outcome(data_of("settings", {})).comparisons
    assert line.ours.reason == "no dense trial is done"


def test_figure_4_prunes_the_example_of_the_text():
    found = lines_of(page("sdgp-fig4").outcome(data_of("gradient", {})))
    for place, value in zip(("first", "second", "third", "fourth"), (0, 7, -3, 0), strict=True):
        line = found[f"{place} element of [1, 7, -3, 2], magnitude 2:4"]
        assert (line.published, line.ours.mean) == (value, value)
    assert found["sum of magnitudes left"].ours.reason == "the dense trial is not done"


def test_figure_4_keeps_the_sum_of_each_channel_over_its_pixels():
    torch.manual_seed(0)
    grad = torch.randn(2, 8, 3, 3)
    grad[1, 4:, 0] *= 9
    rows = gradients.loudest_rows(grad)
    assert torch.equal(rows, grad[1, 4:, 0].T)  # the three pixels of the first row, in order
    found = gradients.prune(rows, gradients.SEED, gradients.IN_THE_CAPTION)
    for name in ("random", "magnitude", "rescaled"):
        assert (found[name] == 0).sum() == 6
    kept = found["rescaled"].abs().sum(0) > 0
    torch.testing.assert_close(found["rescaled"].abs().sum(0)[kept], rows.abs().sum(0)[kept])
    assert torch.equal(found["rescaled"] != 0, found["magnitude"] != 0)
