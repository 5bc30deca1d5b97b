"""The choice of the fastest implementation: the margin, the stored file, damaged files, and the lock."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
import torch

from methods.backends import autotune
from suite.errors import UsageError

CPU = torch.device("cpu")
HARDWARE = "h1234567"
NAMES = ("base", "other", "third")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PDT_CHOICES", str(tmp_path / "choices"))
    return tmp_path / "choices"


@pytest.fixture(autouse=True)
def real_rounds(monkeypatch: pytest.MonkeyPatch, measured_rounds: dict[str, float]) -> None:
    """Measure as a trial does; other tests take one round."""
    for name, value in measured_rounds.items():
        monkeypatch.setattr(autotune, name, value)


def times(monkeypatch: pytest.MonkeyPatch, by_name: dict[str, list[float]]) -> list[str]:
    """Give each candidate these seconds in turn; return the names in the order of the samples."""
    asked: list[str] = []
    steps = {name: (lambda: None) for name in by_name}

    def seconds(step, repeats, device):
        name = next(name for name in steps if steps[name] is step)
        asked.append(name)
        several = by_name[name]
        return several[asked.count(name) % len(several)]

    monkeypatch.setattr(autotune, "_seconds", seconds)
    monkeypatch.setattr(sys.modules[__name__], "prepare", lambda: steps)
    return asked


def prepare():
    raise AssertionError("nothing had to be measured")


def ask(question=None, names=NAMES):
    return autotune.choose(question or {"what": "test"}, names, lambda: prepare(), CPU, HARDWARE)


def test_the_baseline_is_left_only_for_what_beats_it_by_the_margin_in_its_whole_interval(monkeypatch, folder):
    for number, (other, third, chosen) in enumerate(
        (
            ([0.9], [0.8], "third"),
            ([0.9], [1.0], "other"),
            ([0.96], [0.97], "base"),  # faster, by less than the margin
            ([0.5, 1.5], [2.0], "base"),  # half of the time faster
            ([0.9] * 9 + [5.0], [1.0], "other"),  # few rounds were disturbed
        )
    ):
        times(monkeypatch, {"base": [1.0], "other": other, "third": third})
        assert ask({"number": number}).name == chosen, (other, third)


def test_rounds_are_interleaved_in_changing_order_and_end_when_it_is_decided(monkeypatch):
    asked = times(monkeypatch, {"base": [1.0], "other": [0.5], "third": [2.0]})
    choice = ask()
    assert choice.rounds == autotune.FEWEST_ROUNDS
    rounds = [tuple(asked[first : first + 3]) for first in range(3, len(asked), 3)]  # behind one look at each
    assert len(rounds) == choice.rounds
    assert all(sorted(one) == sorted(NAMES) for one in rounds)
    assert len(set(rounds)) > 2
    times(monkeypatch, {"base": [1.0], "other": [0.93, 0.97], "third": [2.0]})
    assert ask({"what": "too close"}).rounds == autotune.MOST_ROUNDS


def test_a_measurement_that_stays_undecided_ends_when_its_time_is_up(monkeypatch):
    times(monkeypatch, {"base": [1.0], "other": [0.93, 0.97], "third": [2.0]})
    monkeypatch.setattr(autotune, "LONGEST_S", -1.0)
    assert ask().rounds == autotune.FEWEST_ROUNDS


def test_fast_candidates_run_several_times_in_a_sample(monkeypatch):
    times(monkeypatch, {"base": [1e-3], "other": [1e-4], "third": [1.0]})
    seconds, most = autotune._seconds, {}

    def counted(step, repeats, device):
        most[repeats] = most.get(repeats, 0) + 1
        return seconds(step, repeats, device)

    monkeypatch.setattr(autotune, "_seconds", counted)
    rounds = ask().rounds
    assert most == {1: 3 + rounds, 2: rounds, 20: rounds}


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (torch, "get_num_threads", 99),
        (torch, "get_float32_matmul_precision", "another"),
        (torch.backends.cpu, "get_cpu_capability", "another"),
    ],
)
def test_a_machine_with_another_setting_is_another_machine(monkeypatch, owner, name, value):
    before = autotune.machine(HARDWARE)
    assert autotune.machine("another") != before
    monkeypatch.setattr(owner, name, lambda *given: value)
    assert autotune.machine(HARDWARE) != before


def test_the_interval_encloses_the_median_ratio_of_paired_samples():
    ratios = [1 + number / 100 for number in range(15)]
    found = autotune._timing([2 * ratio for ratio in ratios], [2.0] * 15)
    assert found.ratio == pytest.approx(1.07)
    # Fewer than 3 of 15 fair coins show heads with probability 0.0037, fewer than 4 with 0.0176.
    assert (found.low, found.high) == (pytest.approx(1.02), pytest.approx(1.12))


def test_a_choice_is_kept_for_the_question_and_the_machine_alone(monkeypatch, folder):
    times(monkeypatch, {"base": [1.0], "other": [0.5], "third": [2.0]})
    measured = ask()
    asked = times(monkeypatch, {"base": [1.0], "other": [2.0], "third": [2.0]})
    assert ask() == measured
    assert not asked
    assert ask({"what": "another"}).name == "base"
    assert ask(names=("other", "base", "third")).name == "base"
    machine = autotune.machine(HARDWARE)
    monkeypatch.setattr(autotune, "machine", lambda hardware_id: {**machine, "threads": 99})
    assert ask().name == "base"
    assert len(list(folder.glob("*.json"))) == 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: json.dumps(["other"]),
        lambda text: "[" * 100_000,
        lambda text: b"\xff\xfe" * 10,
        lambda text: json.dumps({**json.loads(text), "timings": {}}),
    ],
)
def test_a_damaged_file_is_measured_again(monkeypatch, folder, caplog, damage):
    asked = times(monkeypatch, {"base": [1.0], "other": [0.5], "third": [2.0]})
    expected = ask()
    (path,) = folder.glob("*.json")
    whole = path.read_text()
    damaged = damage(whole)
    path.write_bytes(damaged if isinstance(damaged, bytes) else damaged.encode())
    asked.clear()
    assert ask() == expected
    assert asked
    assert "is measured again" in caplog.text
    assert path.read_text() == whole
    asked.clear()
    assert ask() == expected
    assert not asked


def test_a_folder_that_cannot_be_written_is_refused_with_one_line(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PDT_CHOICES", str(tmp_path / "file" / "choices"))
    with pytest.raises(UsageError, match=r"cannot be stored in .*set PDT_CHOICES to a folder that can be written"):
        ask()


def test_one_measures_after_the_other(monkeypatch, folder):
    times(monkeypatch, {"base": [1.0], "other": [0.5], "third": [2.0]})
    folder.mkdir()
    measuring = threading.Thread(target=ask)
    with autotune._locked(folder):
        measuring.start()
        measuring.join(timeout=0.2)
        assert not list(folder.glob("*.json"))
    measuring.join()
    assert len(list(folder.glob("*.json"))) == 1


def test_what_another_process_measured_during_the_wait_is_taken(monkeypatch, folder):
    times(monkeypatch, {"base": [1.0], "other": [0.5], "third": [2.0]})
    measured = ask()
    (path,) = folder.glob("*.json")
    text = path.read_text()
    path.unlink()
    locked = autotune._locked

    def meanwhile(where):
        path.write_text(text)
        return locked(where)

    monkeypatch.setattr(autotune, "_locked", meanwhile)
    monkeypatch.setattr(sys.modules[__name__], "prepare", lambda: pytest.fail("measured again"))
    assert ask() == measured
