"""The campaign: settings in order, pauses, exports, priorities, and kills at random moments."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from small_trials import put_export, spec

from benchmarks import campaign
from suite.errors import UsageError
from suite.trials.folder.records import unpacked

SETTINGS = """
[common]
task = "digits"
preset = "smoke"
device = "cpu"
dtype = "float32"
seeds = 2
set = ["recipe.train_images=64", "recipe.test_images=32"]

[[setting]]
methods = "dense,ssl"
epochs = 3

[[setting]]
methods = "dense"
epochs = 2
"""
TRIALS = 6  # of both settings


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(SETTINGS)
    return path


def started(tmp_path, settings):
    command = [sys.executable, "-m", "benchmarks.campaign", tmp_path / "work", tmp_path / "results"]
    return subprocess.Popen([*command, "--settings", settings], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def exported(tmp_path):
    return {path.parent.name: path.read_bytes() for path in (tmp_path / "results").glob("trials/*/trial.json")}


def wait_for_trials(process, seconds=240):
    """Wait until a trial runs, and return it and the other processes of the campaign; none if it has ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
            if any("suite.trials.trial" in one.cmdline() for one in family):
                return family
        if process.poll() is not None:
            return []
        time.sleep(0.05)
    raise AssertionError("no trial was started")


@pytest.mark.parametrize("kills", [pytest.param(3, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
def test_a_campaign_that_is_killed_at_random_moments_loses_nothing_and_repeats_nothing(tmp_path, settings, kills):
    chance, before = random.Random(41), {}
    for _ in range(kills):
        process = started(tmp_path, settings)
        family = wait_for_trials(process)
        time.sleep(chance.uniform(0, 2) if family else 0)
        process.kill()
        _, alive = psutil.wait_procs(family, timeout=60)  # of the lowest priority
        assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE], "a training goes on"
        process.communicate()
        after = exported(tmp_path)
        assert before.items() <= after.items()
        before = after
    last = started(tmp_path, settings)
    output = last.communicate()[0].decode()
    assert last.returncode == 0, output
    found = exported(tmp_path)
    assert before.items() <= found.items()
    specs = [json.loads(content)["spec"] for content in found.values()]
    names = sorted((one["method"], one["recipe"]["epochs"], one["seed"]) for one in specs)
    settings_of = (("dense", 2), ("dense", 3), ("ssl", 3))
    assert names == [(*setting, seed) for setting in settings_of for seed in (0, 1)]
    for name in found:
        own, copy = tmp_path / "work" / "trials" / name, tmp_path / "results" / "trials" / name
        assert {path.name for path in copy.iterdir()} == {"trial.json", "epochs.jsonl.gz", "layers.csv.gz"}
        assert unpacked(copy / "epochs.jsonl.gz") == (own / "epochs.jsonl").read_bytes()
    assert (tmp_path / "results" / "suite.json").is_file()
    shutil.rmtree(tmp_path / "work")  # or another machine goes on with the results
    output = started(tmp_path, settings).communicate()[0].decode()
    assert output.count("nothing to run: all") == 2, output
    assert exported(tmp_path) == found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pause_interrupts_trials_and_its_end_continues_them(tmp_path, settings):
    work = tmp_path / "work"
    process = started(tmp_path, settings)
    try:
        family = wait_for_trials(process)
        time.sleep(2.5)  # two looks at the processes
        family += psutil.Process(process.pid).children(recursive=True)
        nice = []
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
                if "suite.trials.trial" in one.cmdline():
                    nice.append((one.nice(), Path(f"/proc/{one.pid}/autogroup").read_text().split()[-1]))
        assert nice
        assert {*nice} == {(campaign.LOWEST, str(campaign.LOWEST))}
        (work / campaign.PAUSE).touch()
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive
        time.sleep(2.5)
        assert process.poll() is None
        assert not psutil.Process(process.pid).children(recursive=True)
        (work / campaign.PAUSE).unlink()
        output = process.communicate(timeout=600)[0].decode()
        assert process.returncode == 0, output
        assert len(exported(tmp_path)) == TRIALS
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()


def test_what_was_exported_is_taken_over_whole_and_into_no_foreign_folder(tmp_path, capsys):
    work, results = tmp_path / "work", tmp_path / "results"
    trials = [spec("dense", seed=seed) for seed in range(2)]
    for trial in trials:
        place = put_export(results, trial)
    (place / "layers.csv.gz").write_bytes(b"\x1f\x8b")
    (results / "suite.json").write_text("{}")
    work.mkdir()
    (work / "notes.txt").touch()
    campaign.Campaign(work, results)._take_exported()
    assert [path.name for path in work.iterdir()] == ["notes.txt"]
    (work / "notes.txt").rename(work / campaign.PAUSE)
    campaign.Campaign(work, results)._take_exported()
    assert [path.name for path in (work / "trials").iterdir()] == [trials[0].trial_id]
    assert f"{trials[1].trial_id} is not taken over, and trained again: layers.csv.gz" in capsys.readouterr().out
    (work / "suite.json").write_text("[]")
    campaign.Campaign(work, results)._take_exported()
    assert (work / "suite.json").read_text() == "[]"


def test_settings_are_options_with_those_that_all_share(settings):
    first, second = campaign.read_settings(settings)
    assert campaign.words(second, settings.parent)[-3:] == ["--methods=dense", "--epochs=2", f"--out={settings.parent}"]
    assert campaign.words(first)[5:7] == ["--set=recipe.train_images=64", "--set=recipe.test_images=32"]


def test_seeds_are_outermost(tmp_path):
    (tmp_path / "settings.toml").write_text(f"seeds = [5, 6]\n{SETTINGS}")
    found = [(one["seeds"], one["epochs"]) for one in campaign.read_settings(tmp_path / "settings.toml")]
    assert found == [("5,", 3), ("5,", 2), ("6,", 3), ("6,", 2)]


@pytest.mark.parametrize("seeds", ["6", "true", "[]", '"5,6"', "[5.5]", '["0,1"]'])
def test_seeds_that_are_no_numbers_are_refused(tmp_path, seeds):
    (tmp_path / "settings.toml").write_text(f"seeds = {seeds}\n{SETTINGS}")
    with pytest.raises(UsageError, match=r"settings\.toml: seeds must be a list of numbers, such as \[5, 6\]"):
        campaign.read_settings(tmp_path / "settings.toml")


def test_bfloat16_is_not_emulated(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "has_bfloat16_cpu", lambda: False)
    with pytest.raises(UsageError, match="neither AMX nor AMD's AVX512_BF16"):
        campaign.Campaign(tmp_path / "work", tmp_path / "results").run([{"dtype": "bfloat16"}])
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("text", ["", "[[setting", "[[settings]]\nmethods = 'dense'", "[common]\nseeds = 1"])
def test_a_file_without_settings_is_refused(tmp_path, text):
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(UsageError, match=r"^campaign: .*wrong\.toml "):
        campaign.read_settings(tmp_path / "wrong.toml")


@pytest.mark.slow
def test_a_setting_that_is_no_command_is_named(tmp_path):
    (tmp_path / "settings.toml").write_text('[[setting]]\nmethods = "dnse"\ntask = "digits"\n')
    process = started(tmp_path, tmp_path / "settings.toml")
    output = process.communicate()[0].decode()
    assert process.returncode == 2
    assert "campaign: setting 1 ended with status 2: --methods=dnse --task=digits" in output
