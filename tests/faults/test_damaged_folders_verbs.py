"""Random damages of folders through every verb that reads them.

The seed is fixed, so that a change is refused for its own faults; `damaged_folders.py` draws new ones.
"""

import damaged_folders
import pytest

SEED = 198713  # its damage 2 was once not noticed
SAMPLE, MANY, LONG = 12, 60, 500


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """A folder of a suite, and a copy that `export` made of it."""
    return damaged_folders.make_base(tmp_path_factory.mktemp("damaged"))


def tried(base, tmp_path, monkeypatch, tally, count):
    damaged_folders.without_figures(monkeypatch.setattr)
    found, faults = damaged_folders.run(base, SEED, count, tmp_path)
    tally["edits"] += count
    tally["refused"] += sum(number for outcome, number in found.items() if outcome.endswith(" 2"))
    assert not faults, "\n".join(faults)
    # Damages are such that most verbs still have something to do, and some have not.
    for verb in damaged_folders.VERBS:
        assert found[f"{verb} 0"] + found[f"{verb} 1"] > 0.3 * count, found


def test_damaged_folders(damaged, tmp_path, monkeypatch, tally):
    tried(damaged, tmp_path, monkeypatch, tally, SAMPLE)


@pytest.mark.slow
def test_more_damaged_folders(damaged, tmp_path, monkeypatch, tally):
    tried(damaged, tmp_path, monkeypatch, tally, MANY)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_damaged_folders(damaged, tmp_path, monkeypatch, tally):
    tried(damaged, tmp_path, monkeypatch, tally, LONG)
