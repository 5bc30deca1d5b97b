"""Strangers on a shared machine: what they send, plant or write to a store is never run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_trials import put, untrained
from toy_suite import ROOT

import suite
from suite.cli.folders import contents
from suite.errors import UsageError

PLUGIN = """
from methods.dense import Dense
from suite.registry import register

@register("method", "sent")
class Sent(Dense):
    '''Dense under another name.'''
"""

pytestmark = pytest.mark.timeout(900)  # many commands, on a machine that may be busy
SMALL = ("--task", "digits", "--preset", "smoke", "--dtype", "float32", "--model", "resnet9[width=0.0625]")


@pytest.fixture
def ran(tmp_path):
    """A file that code of a stranger writes, and its code."""
    place = tmp_path / "ran"
    return place, f"import sys; open({str(place)!r}, 'a').write(' '.join(sys.argv) + chr(10))\n"


def command(*words, cwd, home=None, **more):
    """Run a command in a folder, and return how it ended."""
    variables = {**os.environ, "HOME": str(home or cwd), **more}
    return subprocess.run(
        [sys.executable, str(ROOT / "run_suite.py"), *map(str, words)],
        cwd=cwd, env=variables, capture_output=True, text=True, timeout=250,
    )  # fmt: skip


@pytest.mark.slow
def test_a_folder_that_somebody_sends_runs_no_plugin(tmp_path, ran):
    place, code = ran
    plugin, sent, other, here = (tmp_path / name for name in ("plugin.py", "sent", "other", "here"))
    here.mkdir()
    plugin.write_text(PLUGIN)
    for methods, out in (("sent", sent), ("dense", other)):
        words = ("--methods", methods, "--plugin", plugin, *SMALL, "--epochs", "1", "--out", out)
        assert command(*words, cwd=here).returncode == 0
    plugin.write_text(code + PLUGIN)

    for words in (
        ("report", sent), ("compare", sent, other), ("merge", sent, other, "-o", here / "merged"),
        ("export", sent, here / "exported"), ("time", sent, "--busy", "--pairs", "10"), ("profile", sent, "--busy"),
    ):  # fmt: skip
        answer = command(*words, cwd=here)
        assert answer.returncode == (1 if words[0] in ("time", "profile") else 0), answer.stderr
        if words[0] in ("time", "profile"):
            assert f"plugin '{plugin.name}', and plugins that a record names are not run" in answer.stdout
    suite.load_results(sent)
    assert not place.exists()

    # The user runs what he types, if it is what the trial ran.
    answer = command("time", sent, "--busy", "--pairs", "10", "--plugin", plugin, cwd=here)
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert "is not run: no trial of the folder was defined by a file of this content" in answer.stderr
    assert not place.exists()
    plugin.write_text(PLUGIN)
    answer = command("time", sent, "--busy", "--pairs", "10", "--plugin", plugin, cwd=here)
    assert answer.returncode == 0, answer.stdout
    assert "sent: " in answer.stdout


@pytest.mark.parametrize("link", ["results.csv", "figures/x-gain-time.svg", "layers.csv"])
def test_an_export_copies_no_file_through_a_link(tmp_path, link):
    secret, sent = tmp_path / "secret", tmp_path / "sent"
    secret.write_text("{}")
    if link == "layers.csv":
        link = put(sent, untrained()).relative_to(sent) / link
        (sent / link).unlink()
    (sent / link).parent.mkdir(parents=True, exist_ok=True)
    (sent / link).symlink_to(secret)
    with pytest.raises(UsageError, match=f"{Path(link).name} is a symbolic link"):
        list(contents(sent))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_the_working_folder_is_not_imported(tmp_path, ran, engine):
    if engine == "ray":
        pytest.importorskip("ray", reason="needs the extra [ray]")
    place, code = ran
    for name in ("json", "torch", "numpy", "suite", "methods"):
        (tmp_path / f"{name}.py").write_text(code)
    address = ("--ray-address", "local") if engine == "ray" else ()
    out = tmp_path / "out"
    # Backends that are chosen by measurement may differ on a busy machine.
    methods = ("--methods", "dense,sdgp[backend=masked]", *SMALL, "--epochs", "1")
    trials = (*methods, "--out", out, "--engine", engine, *address)
    new = {"OMP_WAIT_POLICY": "PASSIVE"}  # with other settings of threads, processes are started and not forked
    assert command(*trials, cwd=tmp_path, **new).returncode == 0
    if engine == "local":
        for words in (
            ("time", out, "--busy", "--pairs", "3"), ("profile", out, "--busy", "--rounds", "6"), ("check", "dense"),
            ("plan", *SMALL, "--methods", "dense"),
        ):  # fmt: skip
            answer = command(*words, cwd=tmp_path, **new)
            assert answer.returncode == 0, answer.stderr + answer.stdout
    assert not place.exists(), place.read_text()
