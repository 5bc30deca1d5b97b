"""Tests of suites from the command to the report, and of their end after an interruption or error."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from small_trials import recorded
from toy_suite import GOOD, ROOT, TOY, assert_one_line, listing, starts

from reports.data.verdict import exploratory
from suite.cli import main as cli
from suite.cli.run import summary
from suite.engine.cost.hardware import available_cores
from suite.trials import planning
from suite.trials.engines import local
from suite.trials.folder import store
from suite.trials.folder.records import write_record


def test_a_run_from_command_to_report(suite, folder, capsys):
    arguments = ("--methods", "toy_method[mode=random|magnitude],toy_method", "--seeds", "2")
    assert suite(*arguments, "--exploratory", "chosen late") == 0
    captured = capsys.readouterr()
    (out,) = (folder / "runs").iterdir()
    assert out.name.startswith("toy_task-")
    # toy_method equals toy_method[mode=magnitude], so that 2 trials with 2 seeds remain.
    assert starts(out) == [1, 1, 1, 1]
    assert (out / "report.html").is_file()
    assert (out / "results.csv").read_text().count("\n") == 5
    assert "75.00 %" in captured.out
    assert f"report: {out / 'report.html'}" in captured.out
    assert sorted(path.name for path in out.iterdir()) == [
        ".lock",
        "report.html",
        "results.csv",
        "suite.json",
        "trials",
    ]
    content = json.loads((out / "suite.json").read_text())
    assert content["spec"]["preset"] == "smoke"
    assert exploratory(content) == ("chosen late",)
    record = json.loads(next(out.glob("trials/*/trial.json")).read_text())
    assert record["spec"]["parameters"]["n"] == 1  # the model of the preset, because none was given
    assert record["spec"]["model"] == "toy_model[width=2.0]"

    # The same command finds its trials done; `all` runs them again from the beginning.
    assert suite(*arguments) == 0
    assert len(list((folder / "runs").iterdir())) == 1
    assert starts(out) == [1, 1, 1, 1]
    assert suite("--methods", "toy_method[mode=random|magnitude]", "--seeds", "2", "--only", "all") == 0
    assert starts(out) == [1, 1, 1, 1]
    assert len(json.loads((out / "suite.json").read_text())["commands"]) == 3


def test_a_failed_trial_gives_1_and_a_report(suite, folder, capsys):
    out = folder / "out"
    assert suite("--methods", "toy_method[n=3|4]", "--out", "out", "--jobs", "2") == 1
    assert "error: RuntimeError: three is too many" in capsys.readouterr().out
    assert (out / "report.html").is_file()
    assert suite("--methods", "toy_method[n=3|4]", "--out", "out", "--only", "failed") == 1
    assert starts(out) == [1, 2]
    # Another command adds its trials to the folder; its exit status depends only on them.
    assert suite("--methods", "toy_method[n=2]", "--out", "out") == 0
    assert starts(out) == [1, 1, 2]
    assert (out / "results.csv").read_text().count("\n") == 4
    capsys.readouterr()
    assert cli.main(["report", "out"]) == 0
    assert capsys.readouterr().out == f"report: {out / 'report.html'}\n"


def test_a_folder_in_use_is_refused(suite, folder, capsys, monkeypatch):
    monkeypatch.setattr(store, "LOCK_TIMEOUT", 0.05)
    with store.Store(folder / "out").lock():
        before = listing(folder)
        assert suite("--out", "out") == 2
        message = capsys.readouterr().err
        assert f"is in use by process {os.getpid()}; wait for it, or train into another folder with --out" in message
        assert listing(folder) == before


def test_smoke_trains_with_one_thread_on_a_busy_machine(suite, folder, monkeypatch, caplog):
    def threads(out):
        (path,) = Path(out).glob("trials/*/threads")
        return int(path.read_text())

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("suite.engine.cost.hardware.competition", lambda load, cores: "others are running")
    assert suite("--out", "busy") == 0
    assert (threads("busy"), "others are running; each trial has one thread" in caplog.text) == (1, True)
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert suite("--out", "empty") == 0
    assert threads("empty") == 1
    # The user's own number stays, and one that slows the machine is named.
    monkeypatch.setenv("OMP_NUM_THREADS", str(available_cores() + 1))
    assert suite("--out", "typed") == 0
    assert threads("typed") == available_cores() + 1
    assert f"OMP_NUM_THREADS={available_cores() + 1} is more than the {available_cores()} cores" in caplog.text


def test_ctrl_c_gives_130_and_the_same_command_continues(suite, folder):
    driver = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        from suite.cli import main as cli
        from suite.trials.engines import local
        local.trial_command = lambda folder: [sys.executable, "-c", "import time; time.sleep(100)"]
        sys.exit(cli.main(sys.argv[1:]))
        """
    )
    command = [sys.executable, "-c", driver, *GOOD, "--out", "out"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 40
    while not list(folder.glob("out/trials/*/trial.json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "interrupted" in (folder / "out" / "results.csv").read_text()
    assert suite("--out", "out") == 0


def test_an_interrupted_run_names_the_command_that_shows_what_is_finished(suite, monkeypatch, caplog):
    def interrupted(engine, trials, progress):
        trial, place = trials[0]
        place.mkdir(parents=True)
        write_record(place, trial, "done")
        raise KeyboardInterrupt

    monkeypatch.setattr(local.LocalEngine, "run", interrupted)
    caplog.set_level("INFO")
    assert suite("--out", "out") == 130
    assert any(line.endswith("/out shows what is finished") for line in caplog.messages)


def test_a_programming_error_keeps_its_traceback(suite, monkeypatch):
    monkeypatch.setattr(planning, "_check_fits", lambda *arguments: undefined)  # noqa: F821
    with pytest.raises(NameError):
        suite()


def test_what_a_plugins_code_raises_is_one_line_that_names_its_own(suite, folder, capsys):
    (folder / "toy.py").write_text(TOY.replace('return DataCopy("original"', 'return undefined("original"'))
    number = 1 + (folder / "toy.py").read_text().split("undefined(")[0].count("\n")
    assert suite() == 2
    assert_one_line(capsys.readouterr().err, f"toy.py, line {number}, in prepare: NameError: name 'undefined' is not")


@pytest.mark.parametrize(("verb", "said"), [
    ([], "; finished work is kept, and the same command continues"),
    (["time"], "; finished work is kept, and the same command continues"),
    (["plan"], "; no probe is kept, and the same command starts again"),
    (["compare"], ""),
])  # fmt: skip
def test_an_interruption_says_what_its_verb_keeps(monkeypatch, capsys, verb, said):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupted)
    assert cli.main([*verb, "--x"]) == 130
    assert capsys.readouterr().err == f"pdt: interrupted{said}\n"


def trained(method, epochs, accuracy=0.5, dense=1.0, executed=1.0, provenance=None, **fields):
    """Return the record of a training with some epochs."""
    result = {"test_accuracy": accuracy, "train_time_s": 2.0, "train_flops_dense": dense}
    result |= dict.fromkeys(("train_flops_effective", "train_flops_executed"), executed)
    fields = {"task": "t", "model": "m", "recipe": {"epochs": epochs}, **fields}
    return recorded(result, method=method, provenance=provenance, **fields)


def test_the_summary_keeps_trainings_of_different_length_apart():
    lengths = [("m", 1, 0.25), ("m", 2, 0.375), ("m", 4, 0.5), ("m", 2, 0.375), ("other", 2, 0.5)]
    records = [trained("dense", epochs, accuracy, model=model) for model, epochs, accuracy in lengths]
    table = summary([trained("dense", 4, variant="repeat=2"), trained("sdgp", 4), *records])
    shown = list(zip(*(table.columns[index].cells for index in range(1, 6)), strict=True))
    assert shown == [
        ("m", "dense", "4", "1/1", "50.00 %"),
        ("m", "dense", "2", "2/2", "37.50 %"),
        ("m", "dense", "1", "1/1", "25.00 %"),
        ("m", r"dense\[repeat=2]", "4", "1/1", "50.00 %"),
        ("m", "sdgp", "4", "1/1", "50.00 %"),
        ("other", "dense", "2", "1/1", "50.00 %"),
    ]


def test_the_summary_compares_flops_with_the_longest_dense_training():
    longer = trained("dense", 8, 0.5, 8.0, 2.0, variant="width=0.5,recipe.epochs=8", replaced={"epochs": 4})
    own = [longer, trained("progressive_resizing", 4)]
    records = [trained("dense", 4, 0.5, 4.0, 4.0), trained("dense", 2, 0.5, 2.0, 2.0), *own]
    assert [*summary(records).columns[8].cells] == ["100.0 %", "50.0 %", "50.0 %", "25.0 %"]
    assert [*summary(own).columns[8].cells] == ["25.0 %", "100.0 %"]  # no dense training to compare with


def test_the_summary_marks_disturbed_times():
    for busy, expected in ((0.0, "2.0 s"), (2.0, "2.0 s (disturbed)")):
        (cell,) = (
            summary([trained("dense", 1, provenance={"hardware": {"threads": 2}, "busy_cores": busy})]).columns[6].cells
        )
        assert cell == expected
