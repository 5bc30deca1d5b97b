"""What is said about time passes of dense against dense, and next to whole trainings."""

import math
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from small_trials import flushed, train_in_suite
from time_passes import one_pass

from benchmarks.evidence import time_passes
from reports.data.records import Trial
from suite.measure import time_pass
from suite.runs.folder.entries import GroupEntries
from suite.runs.folder.times import TIMES, MethodTime


def write(folder, **methods):
    entries = {
        name: MethodTime.model_validate({"passes": [one_pass(*ratios) if isinstance(ratios, tuple) else one_pass(ratios)
                                                    for ratios in several]})
        for name, several in methods.items()
    }  # fmt: skip
    TIMES.write(folder, [GroupEntries[MethodTime](key={"task": "cifar10"}, methods=entries)])


def test_each_three_passes_of_dense_are_a_measurement(tmp_path, capsys):
    write(tmp_path, **{"dense[repeat=2]": [1.001, 0.999, 1.0, 1.05, 1.051, 1.052, 1.0]})
    assert time_passes.main(["same", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert lines[0].startswith(" 1  passes 1.0010 0.9990 1.0000  1.0000 [0.99")
    assert lines[2] == "1 of 2 intervals contain 1"
    assert lines[3].startswith("7 passes: mean +2.1")
    assert lines[4] == "7 dense twice: mean +0.00 %, standard deviation 0.00 %"
    assert lines[6:] == [
        f"states in which {one} was built first: {lines[3].removeprefix('7 passes: ')}" for one in ("dense", "method")
    ]


@pytest.mark.parametrize(("seconds", "inside"), [((90.0, 90.4), "inside"), ((80.0, 80.0), "outside")])
def test_whole_trainings_are_compared_with_the_interval_of_the_passes(tmp_path, monkeypatch, capsys, seconds, inside):
    write(tmp_path, sdgp=[0.9, 0.902, 0.904], other=[0.5, 0.501, 0.502])
    folders = {tmp_path: ((100.0, seconds[0]), 40.0), tmp_path / "second": ((100.0, seconds[1]), None)}

    class Found:
        def __init__(self, folder):
            own, third = folders[folder]
            named = {"dense": own[0], "sdgp": own[1]} | ({"other": third} if third else {})
            self.trials = [Trial({"method": name}, {"train_time_s": one}) for name, one in named.items()]

    monkeypatch.setattr(time_passes, "read", Found)
    assert time_passes.main(["whole", str(tmp_path), str(tmp_path / "second")]) == 0
    lines = capsys.readouterr().out.splitlines()
    each = " ".join(f"{one / 100:.4f}" for one in seconds)
    assert lines[:2] == ["dense: trained in 100.0 100.0 s", f"sdgp: trained in {seconds[0]:.1f} {seconds[1]:.1f} s"]
    assert lines[2].startswith(f"  of dense: {each}, together {sum(seconds) / 200:.4f}: {inside} [0.9003, 0.9037]")
    assert lines[3] == "other: trained in 40.0 s"
    assert lines[4].startswith("passes differ by 0.")
    assert lines[5].startswith("sdgp: passes 0.9000 0.9020 0.9040  0.9020 [0.9003, 0.9037]")
    assert lines[7] == "  from epoch 4: 0.902, 0.902 at its start and end"
    assert len(lines) == 11


def test_trainings_take_turns_so_that_they_stay_equally_far():
    turns, order = time_passes.Turns(2, seconds=0), []

    def fit(place, steps):
        for step in range(steps):
            order.append(place)
            turns.step(place, (step + 1) / steps)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(turns.run, (1, 0), (partial(fit, 1, 6), partial(fit, 0, 3))))
    assert order == [0, 1, 1, 1, 0, 1, 1, 0, 1]


def test_a_training_that_fails_gives_its_turn_away():
    turns = time_passes.Turns(2, seconds=0)

    def fails():
        raise ValueError("it fails")

    with ThreadPoolExecutor(2) as pool, pytest.raises(ValueError, match="it fails"):
        list(pool.map(turns.run, (0, 1), (fails, partial(turns.step, 1, 1.0))))


@pytest.mark.slow
def test_whole_trainings_in_turn_are_compared_with_the_passes(tmp_path, capsys):
    for method in ("dense", "ssl"):
        train_in_suite(tmp_path, flushed(method, epochs=1, train_images=256))
    torch.set_flush_denormal(False)
    time_pass.run(tmp_path, pairs=3, busy=True, show=lambda line: None)
    module = "benchmarks.evidence.time_passes"
    command = [sys.executable, "-m", module, "together", str(tmp_path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    each = re.findall(
        r"^(\d)\. ssl: trained in [\d.]+ s, dense in [\d.]+ s: ([\d.]+) of dense; executed ([\d.]+)", text, re.M
    )
    assert [number for number, _, _ in each] == ["1", "2", "3"], text
    ratios = [float(ratio) for _, ratio, _ in each]
    assert all(0.2 < ratio < 5 for ratio in ratios)  # so little is trained while other tests run
    assert {executed for _, _, executed in each} == {"1.0000"}
    mean = re.search(r"^ssl: ([\d.]+) \[[\d.]+, [\d.]+\]$", text, re.M)
    assert mean is not None, text
    assert float(mean[1]) == pytest.approx(math.prod(ratios) ** (1 / 3), abs=2e-4)  # each has four digits


def test_a_wrong_number_of_folders_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        time_passes.main(["whole", str(tmp_path)])
    assert capsys.readouterr().err.endswith("error: whole takes folders\n")
