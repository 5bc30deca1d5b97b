"""Forked programs do what started ones do."""

import os
import signal
import subprocess
import sys

import forks
import pytest

SAYS = """
import atexit, os, sys
print(__name__, sys.argv, os.getcwd(), sys.path[0], os.environ.get("ONE"), sys.stdin.read())
sys.stderr.write("said")
atexit.register(print, "last")
"""
ENDS = {
    "SystemExit": "raise SystemExit('why')",
    "status": "import sys; sys.exit(3)",
    "error": "raise ValueError('wrong')",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "raise KeyboardInterrupt",
}


def both(command, **options):
    """Return what a program does that is forked, and that is started."""
    options |= {"capture_output": True, "text": True}
    with pytest.MonkeyPatch.context() as patch:
        done = [subprocess.run(command, **options)]
        patch.setattr(subprocess, "Popen", forks.STARTED)
        done.append(subprocess.run(command, **options))
    return done


@pytest.mark.parametrize("kind", ["-c", "-m", "file"])
def test_a_program_finds_the_same(kind, tmp_path):
    (tmp_path / "says.py").write_text(SAYS)
    words = {"-c": ["-c", SAYS], "-m": ["-m", "says"], "file": [str(tmp_path / "says.py")]}[kind]
    variables = {**os.environ, "ONE": "1", "PYTHONPATH": ""}
    forked, started = both([sys.executable, *words, "a b"], cwd=tmp_path, env=variables, input="given")
    if kind == "-c":  # Python has the working folder there as an empty text
        forked.stdout = forked.stdout.replace(f"{tmp_path} {tmp_path}", f"{tmp_path} ")
    assert vars(forked) == vars(started)
    assert "given\nlast" in forked.stdout


@pytest.mark.parametrize("how", ENDS)
def test_a_program_ends_the_same(how):
    forked, started = both([sys.executable, "-c", ENDS[how]])
    assert forked.returncode == started.returncode != 0
    assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]


def test_a_session_can_be_killed_with_what_it_started():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout.read(1) == b"1"
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert process.stdout.read() == b"\n"  # no process has the other end
    process.stdin.close()
    process.stdout.close()


def test_what_is_chosen_at_the_start_of_python_or_torch_starts_a_process():
    command = [sys.executable, "-P", "-m", "suite.trials.trial", "FOLDER"]
    assert forks.Program.of(command, os.environ, "/", False) is not None
    for name in ("OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "PYTHONUTF8"):
        assert forks.Program.of(command, {**os.environ, name: "7"}, "/", False) is None
    assert forks.Program.of([sys.executable, "-I", "x.py"], os.environ, "/", False) is None
    assert forks.Program.of(["g++", "x.cpp"], os.environ, "/", False) is None
