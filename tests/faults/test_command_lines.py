"""Command lines that were once a traceback, an endless loop or accepted: each is refused with a single line.

Nothing is trained: accepted trials are recorded as done.
"""

import io
import os
import textwrap
from contextlib import redirect_stderr, redirect_stdout

import pytest
from toy_suite import TOY, forget_plugins, good

import reports
from suite.cli import main as cli
from suite.cli import run
from suite.trials import provenance
from suite.trials.engines.local import LocalEngine
from suite.trials.folder import store

PLUGINS = {
    "toy.py": TOY,
    "no_method.py": "from suite.registry import register\n@register('method', 'no_method')\nclass A: pass\n",
    "no_task.py": "from suite.registry import register\n@register('task', 'no_task')\ndef task(): return 3\n",
    "no_model.py": "from suite.registry import register\n@register('model', 'no_model')\ndef model(): return None\n",
    "raising.py": """
        from suite.method import Method
        from suite.registry import register
        from suite.task import Task

        @register("method", "raising")
        class Raising(Method):
            def __init__(self):
                raise KeyError("no luck\\nat all")

        @register("method", "raising_setup")
        class RaisingSetup(Method):
            def setup(self, ctx):
                return 1 / 0

        @register("method", "raising_files")
        class RaisingFiles(Method):
            def files(self):
                return {"absent": 3}

        @register("method", "odd_type")
        class OddType(Method):
            n: dict = 3

        @register("method", "not_quite")
        class NotQuite(Method):
            def __post_init__(self, more):
                pass

        @register("model", "raising_model")
        def raising_model():
            raise RuntimeError("no model today")

        @register("task", "raising_task")
        class RaisingTask(Task):
            num_classes = 3
        """,
    "deep.py": "x = " + "(" * 5000 + ")" * 5000,
    "long_name.py": f"from suite.registry import register\n@register('model', '{'n' * 300}')\ndef f(): pass\n",
}
DIGITS = "9" * 5000
NAMED = [
    *(["--out", path] for path in ("~nouser/x", "x" * 300, "/proc/x", "loop/x", "/".join(["x"] * 3000))),
    *(["--data-root", path] for path in ("~nouser", "x" * 300, "loop")),
    *(["--seeds", text] for text in (DIGITS, f"{DIGITS},", "18446744073709551616,")),
    *([option, DIGITS] for option in ("--epochs", "--jobs", "--timeout", "--batch-size")),
    *(["--seeds=--"], ["--out=--"]),
    *(["--epochs", "999999999999"], ["--jobs", "99999999999"], ["--set", "recipe.split_seed=18446744073709551616"]),
    *(["--model", f"resnet9[width={width}]", "--task", "digits"] for width in ("1e300", "64")),
    *(["--plugin", "no_method.py", "--methods", "no_method"], ["--plugin", "no_model.py", "--model", "no_model"]),
    *(["--plugin", "raising.py", "--methods", name] for name in ("raising", "raising_setup", "raising_files")),
    *(["--plugin", "raising.py", "--methods", name] for name in ("not_quite", "odd_type[n=3]")),
    *(["--plugin", "raising.py", *more] for more in (("--model", "raising_model"), ("--task", "raising_task"))),
    *(["--plugin", name] for name in ("deep.py", "long_name.py",
      "/dev/zero")),
    *(["--config", name] for name in ("/dev/full", "/dev/zero", "pipe", "huge.toml",
      "dotted.toml", "loop")),
    *(["--methods", "dense", "--methods", "sdgp"], ["--seeds", "1", "--seeds", "2"], ["--out", "a", "--out=b"]),
    *(["--out", "\udcff"], ["--methods", "dense\x00"], ["--methods", f"ssl[from_trained={'x' * 300}]"]),
]  # fmt: skip
VERBS = [
    *(["describe", name, "--plugin", "raising.py"] for name in ("raising", "odd_type", "not_quite", "raising_model")),
    *(["describe", name, "--plugin", "no_method.py"] for name in ("no_method", "no_method[x=1]")),
    *([verb, text] for verb in ("describe", "check", "report", "reproduce") for text in ("~nouser", "x" * 300, DIGITS)),
    *([verb, text] for verb in ("describe", "check", "report", "reproduce") for text in ("", "--", "/proc/x",
      "loop", "\x00")),
    *(["check", name, "--plugin", "raising.py"] for name in ("raising", "not_quite")),
    *(["check", "no_method", "--plugin", "no_method.py"], ["describe", "resnet9[width=1e300]"], ["report",
      "/dev/full"]),
    *(["describe", "resnet9", "--task", text] for text in ("x", "", "no_task", "digits,digits", "digits[a=1]")),
    *(["list", text] for text in ("x", "--x", "--json=1", "--plugin", "--plugin=loop")),
    *(["describe", "dense", "--task", "digits", "--task", "cifar10"], ["--help"], ["--"], ["-x"], ["verb"]),
    *(["reproduce", "sdgp-table1", "--parts", text] for text in ("x", "", DIGITS, "all,all")),
    *(["reproduce", "sdgp-table1", option, text] for option in ("--methods", "--task", "--config", "--seeds", "--out")
      for text in ("~nouser", DIGITS)),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with all kinds of files."""
    folder = tmp_path_factory.mktemp("files")
    for name, text in PLUGINS.items():
        (folder / name).write_text(textwrap.dedent(text))
    (folder / "huge.toml").write_bytes(b"#" * (2 << 20))
    (folder / "dotted.toml").write_text("[set]\n" + ".".join(["a"] * 3000) + " = 1")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture
def ask(folder, monkeypatch):
    """Return exit status and errors of a command line; an exception fails the test, because it would be a traceback."""

    def end_at_once(engine, trials, progress):
        for spec, place in trials:
            place.mkdir(parents=True, exist_ok=True)
            store.write_record(place, spec, "done", result={"test_accuracy": 0.5})

    forget_plugins()
    monkeypatch.chdir(folder)
    for name in ("PDT_DATA", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setattr(LocalEngine, "run", end_at_once)
    monkeypatch.setattr(reports, "write_report", lambda path, **more: reports.Written([path / "report.html"], ()))
    monkeypatch.setattr(provenance, "busy_cores", lambda: 0.0)
    monkeypatch.setattr(run, "log", run.log.getChild("quiet"))

    def answer(line):
        out, err = io.StringIO(), io.StringIO()
        try:
            with redirect_stdout(out), redirect_stderr(err):
                status = cli.main(line)
        except SystemExit as leaving:  # --help
            status = leaving.code
        finally:
            forget_plugins()
        assert "Traceback" not in out.getvalue() + err.getvalue()
        return status, err.getvalue().splitlines()

    return answer


def shown(line):
    return " ".join(text if len(text) < 40 else f"{text[:30]}...({len(text)} characters)" for text in line)


@pytest.mark.parametrize("line", NAMED, ids=shown)
def test_options_are_refused_in_one_line(ask, line):
    status, errors = ask(good(*line))
    assert status == 2
    assert errors[-1].startswith("pdt: error: ")
    assert sum(error.startswith("pdt: error: ") for error in errors) == 1


@pytest.mark.parametrize("line", VERBS, ids=shown)
def test_other_verbs_end_with_a_status_and_one_line_if_they_refuse(ask, line):
    status, errors = ask(line)
    assert status in (0, 1, 2)
    assert sum(error.startswith("pdt: error: ") for error in errors) == (status == 2)
