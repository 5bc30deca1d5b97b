"""The declared choice among settings of a search, by hand."""

import pandas as pd
import pytest

from benchmarks import choose


def rows(*of):
    table = pd.DataFrame(of, columns=["setting", "epochs", "accuracies", "flops"])
    table["mean"] = table["accuracies"].map(lambda values: sum(values) / len(values))
    return table


def test_a_score_is_the_distance_to_dense_at_equal_flops():
    table = rows(
        ("dense", 9.9, [88.0, 88.4], 4.0),
        ("dense[recipe.learning_rate=3.0]", 9.9, [80.0, 80.0], 4.0),  # not the highest of its length
        ("dense", 5.5, [86.0, 86.4], 2.0),
        ("dense[width=0.5]", 9.9, [90.0, 90.0], 2.0),  # another network
        ("sdgp", 9.9, [87.0, 88.0], 8**0.5),
        ("freezeout", 9.9, [84.0, 85.0], 1.0),
    )
    # The line is 86.2 + 2 log2(FLOPs / 2): 87.2 at the square root of 8, and 84.2 at 1.
    assert choose.scores(table).tolist() == pytest.approx([0, -8.2, 0, 3.8, 0.3, 0.3])


@pytest.mark.parametrize(("best", "choice"), [(1.3, "a"), (1.5, "c")])
def test_the_default_is_kept_within_a_standard_error(best, choice):
    settings = {"a": (0.9, [87.0, 88.0]), "b": (0.0, [87.0, 87.0]), "c": (best, [87.0, 87.0]), "d": (1.0, [86.0, 87.0])}
    table = {name: pd.Series({"score": score, "accuracies": values}) for name, (score, values) in settings.items()}
    assert choose.chosen([*settings], table) == (choice, pytest.approx(0.5))  # variances 0.5, 0, 0, 0.5
