"""Hundreds of random command lines: each ends with an exit status, and with a single line if it is refused.

Nothing is trained: accepted trials are recorded as done. `python tests/faults/test_command_lines.py 400` prints the
counts, and each command line with its answer.
"""

import io
import os
import random
import sys
import textwrap
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from toy_suite import TOY, forget_plugins

import reports
from suite.cli import main as cli
from suite.cli import run
from suite.trials import provenance
from suite.trials.engines.local import LocalEngine
from suite.trials.folder import store

SEED = 23
MANY, SAMPLE = 400, 60

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
    "unregistered.py": "def register(*names): return lambda thing: thing\n@register('method', 'x')\ndef f(): pass\n",
    "broken.py": "def broken(:\n",
    "exits.py": "from suite.registry import register\n@register('model', 'exits')\ndef f(): pass\nexit(3)\n",
    "deep.py": "x = " + "(" * 5000 + ")" * 5000,
    "long_name.py": f"from suite.registry import register\n@register('model', '{'n' * 300}')\ndef f(): pass\n",
}
CONFIGS = {
    "good.toml": "methods = 'toy_method'\nepochs = 2\n",
    "key.toml": "metods = 'dense'",
    "broken.toml": "methods = ",
    "digits.toml": "epochs = " + "9" * 5000,
    "types.toml": "seeds = {a = 1}",
    "date.toml": "epochs = 2020-01-01",
    "dotted.toml": "[set]\n" + ".".join(["a"] * 3000) + " = 1",
}
DIGITS = "9" * 5000
TEXTS = [
    *("", " ", "--", "-", "-1", "0", "1", "3", "0,1", "7,", ",", "1,,2", "x", "x" * 300, "x" * 70000, DIGITS,
      f"{DIGITS},"),
    *("18446744073709551616", "9223372036854775807", "1e300", "-1e300", "nan", "inf", "1_0", "١٢",
      "999999999999", "0x10"),
    *("~", "~nouser", "~nouser/x", ".", "..", "/", "/proc/x", "/proc/self/mem", "/dev/full", "/dev/null", "/dev/zero"),
    *("/sys/x", "loop", "loop/x", "pipe", "empty", "toy.py", "toy.py/x", "a/b/c", "x" * 300 + "/y",
      "/".join(["x"] * 3000)),
    *("[", "]", "a[", "a[b", "a[b]", "a[=]", "a[b=1", "a[b=1,b=2]", "a[b=|]", "a[[b=1]]", "(" * 3000,
      "a[" * 3000, "a\nb"),
    *("\x00", "\udcff", "é", "💥", "toy_method", "toy_task", "toy_model", "dense", "digits", "resnet9", "all",
      "missing"),
    *("smoke", "cpu", "auto", "cuda:999", "float16", "bfloat16", "local", "recipe.epochs=2", "recipe.epochs",
      "recipe.="),
    *(f"recipe.{field}={value}" for field in ("epochs", "split_seed", "batch_size", "translate", "validation_images")
      for value in ("18446744073709551616", "-1", DIGITS, "4294967296", "1e300", "99999999999")),
    *(f"recipe.milestones={value}" for value in ("(0.5", "0.5,", "(0.5,x)", "()", "((((0.5))))", "(nan)")),
    *(f"resnet9[width={value}]" for value in ("1e300", "1e12", "0", "-1", "nan", "0.3", DIGITS, "64", "1|2|x")),
    *(f"toy_method[n={value}]" for value in ("5", "x", DIGITS, "18446744073709551616", "|".join(map(str, range(200))))),
    *("sdgp[n=9]", "sdgp[m=2|3|4|5,n=1|2]", "scratch[of=x]", "scratch[of=scratch[of=scratch]]", "dense[match=dense]"),
    *("ssl[from_trained=~nouser/x.pt]", f"ssl[from_trained={'x' * 300}]", "ssl[from_trained=/dev/zero]"),
    *("ssl[from_trained=toy.py/x]", "ssl[from_trained=./toy.py]", "no_method", "no_task", "no_model", "raising"),
    *("raising_setup", "raising_files", "odd_type[n=3]", "odd_type", "not_quite", "raising_model", "raising_task"),
    *PLUGINS, *CONFIGS,
]  # fmt: skip
FITTING = {
    "--plugin": [*PLUGINS, "absent.py", "pipe", "loop", "/dev/zero", "empty", "x" * 300, "good.toml"],
    "--config": [
        *CONFIGS,
        "absent.toml",
        "/dev/full",
        "/dev/zero",
        "pipe",
        "loop",
        "empty",
        "x" * 300,
        "huge.toml",
        ".",
    ],
    "--methods": [text for text in TEXTS if "[" in text or text.startswith(("raising", "no_", "odd", "not_", "toy"))],
    "--model": [text for text in TEXTS if "[" in text or text.endswith("_model")],
    "--set": [text for text in TEXTS if text.startswith("recipe")],
    "--out": [text for text in TEXTS if text.startswith(("/", "~", "loop", "pipe", "toy", "x", "a"))],
    "--data-root": [text for text in TEXTS if text.startswith(("/", "~", "loop", "pipe", "toy", "x"))],
}
OPTIONS = (
    *(
        "--methods",
        "--task",
        "--model",
        "--preset",
        "--seeds",
        "--plugin",
        "--epochs",
        "--batch-size",
        "--set",
        "--device",
    ),
    *("--dtype", "--data-root", "--out", "--only", "--jobs", "--engine", "--timeout", "--config"),
)
# Each of these was once a traceback, an endless loop, or accepted.
NAMED = [
    *(["--out", path] for path in ("~nouser/x", "x" * 300, "/proc/x", "loop/x", "/".join(["x"] * 3000))),
    *(["--data-root", path] for path in ("~nouser", "x" * 300, "loop")),
    *(["--seeds", text] for text in (DIGITS, f"{DIGITS},", "18446744073709551616,")),
    *([option, DIGITS] for option in ("--epochs", "--jobs", "--timeout", "--batch-size")),
    *(["--seeds=--"], ["--methods=--"], ["--out=--"]),
    *(["--epochs", "999999999999"], ["--jobs", "99999999999"], ["--set", "recipe.split_seed=18446744073709551616"]),
    *(["--model", f"resnet9[width={width}]", "--task", "digits"] for width in ("1e300", "64")),
    *(["--plugin", "no_method.py", "--methods", "no_method"], ["--plugin", "no_model.py", "--model", "no_model"]),
    *(["--plugin", "raising.py", "--methods", name] for name in ("raising", "raising_setup", "raising_files")),
    *(["--plugin", "raising.py", "--methods", name] for name in ("not_quite", "odd_type[n=3]")),
    *(["--plugin", "raising.py", *more] for more in (("--model", "raising_model"), ("--task", "raising_task"))),
    *(["--plugin", name] for name in ("unregistered.py", "broken.py", "exits.py", "deep.py", "long_name.py",
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
    *(["describe", "dense", "--task", "digits", "--task", "cifar10"], ["--help"], ["--"], ["-x"], ["verb"], []),
    *(["reproduce", "sdgp-table1", "--parts", text] for text in ("x", "", DIGITS, "all,all")),
    *(["reproduce", "sdgp-table1", option, text] for option in ("--methods", "--task", "--config", "--seeds", "--out")
      for text in ("~nouser", DIGITS)),
]  # fmt: skip


def base(arguments):
    """Return a short valid command with some options replaced."""
    sound = {
        "--plugin": "toy.py",
        "--methods": "toy_method",
        "--task": "toy_task",
        "--device": "cpu",
        "--preset": "smoke",
    }
    typed = {text.partition("=")[0] for text in arguments}
    kept = [
        text
        for option, value in sound.items()
        if option == "--plugin" or option not in typed
        for text in (option, value)
    ]
    return [*kept, *arguments]


def command_lines(count, seed):
    """Return `count` command lines, reproducible by seed: known faults, then single faults, then several at once."""
    draw = random.Random(seed)
    lines = [base(one) for one in NAMED] + VERBS
    draw.shuffle(lines)
    while len(lines) < count:
        arguments = []
        for option in draw.sample(OPTIONS, draw.choice((1, 1, 1, 2, 3))):
            text = draw.choice(FITTING[option] if option in FITTING and draw.random() < 0.7 else TEXTS)
            if draw.random() < 0.1:  # a typing error
                place = draw.randrange(len(text) + 1)
                text = text[:place] + draw.choice("[]=|,.-_ ~/\"'\\é0") + text[place + draw.randrange(2) :]
            arguments += [f"{option}={text}"] if draw.random() < 0.3 else [option, text]
        lines.append(base(arguments))
    return lines[:count]


class Answers:
    """Runs command lines in this process, in a folder with all kinds of files; trials end at once."""

    def __init__(self, folder, patch):
        for name, text in {**PLUGINS, **CONFIGS}.items():
            (folder / name).write_text(textwrap.dedent(text))
        (folder / "huge.toml").write_bytes(b"#" * (2 << 20))
        (folder / "empty").touch()
        (folder / "loop").symlink_to("loop")
        os.mkfifo(folder / "pipe")
        patch.chdir(folder)
        for name in ("PDT_DATA", "PYTHONPATH"):
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(folder))
        patch.setattr(LocalEngine, "run", _end_at_once)
        patch.setattr(reports, "write_report", lambda path: reports.Written([path / "report.html"], ()))
        patch.setattr(provenance, "busy_cores", lambda: 0.0)
        patch.setattr(run, "log", run.log.getChild("quiet"))

    def ask(self, line):
        """Return exit status and output; an exception fails the test, because it would be a traceback."""
        out, err = io.StringIO(), io.StringIO()
        try:
            with redirect_stdout(out), redirect_stderr(err):
                status = cli.main(line)
        except SystemExit as leaving:  # --help
            status = leaving.code
        finally:
            forget_plugins()
        return status, out.getvalue(), err.getvalue()


def _end_at_once(engine, trials, progress):
    for spec, folder in trials:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.pt").touch()
        store.write_record(folder, spec, "done", result={"test_accuracy": 0.5})


def shown(line):
    return " ".join(text if len(text) < 80 else f"{text[:30]}...({len(text)} characters)" for text in line)


def fault(status, out, err):
    """Return what is wrong with an answer; empty if nothing is wrong."""
    if status not in (0, 1, 2):
        return f"exit status {status}"
    if "Traceback" in out + err:
        return "a traceback"
    errors = [line for line in err.splitlines() if line.startswith("pdt: error: ")]
    if len(errors) != (status == 2):
        return f"{len(errors)} lines of errors with exit status {status}"
    if status == 2 and err.splitlines()[-1] != errors[0]:
        return "lines behind the error"
    return ""


def check(lines, answers):
    wrong = []
    for line in lines:
        try:
            found = fault(*answers.ask(line))
        except Exception as error:
            found = f"{type(error).__name__}: {str(error)[:200]}"
        if found:
            wrong.append(f"{shown(line)!r}: {found}")
    assert not wrong, f"{len(wrong)} of {len(lines)} command lines:\n" + "\n".join(wrong)


@pytest.fixture
def answers(tmp_path, monkeypatch):
    forget_plugins()
    return Answers(tmp_path, monkeypatch)


def test_a_sample_of_command_lines_ends_with_a_status_and_one_line(answers):
    lines = command_lines(MANY, SEED)
    check(lines[:: MANY // SAMPLE], answers)


def test_what_was_a_traceback_endless_or_accepted_is_refused(answers):
    lines = [base(one) for one in NAMED]
    accepted = [shown(line) for line in lines if answers.ask(line)[0] != 2]
    assert not accepted


@pytest.mark.slow
def test_hundreds_of_command_lines_end_with_a_status_and_one_line(answers):
    check(command_lines(MANY, SEED), answers)


if __name__ == "__main__":
    import tempfile

    count = int(sys.argv[1]) if len(sys.argv) > 1 else MANY
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        asked, statuses, wrong = Answers(Path(folder), patch), Counter(), 0
        for line in command_lines(count, int(sys.argv[2]) if len(sys.argv) > 2 else SEED):
            try:
                answer = asked.ask(line)
                said = fault(*answer) or (answer[2].strip().splitlines() or [""])[-1]
                wrong += bool(fault(*answer))
                statuses[str(answer[0])] += 1
            except Exception as error:
                wrong, said = wrong + 1, f"TRACEBACK {type(error).__name__}: {error}"
                statuses["traceback"] += 1
            print(f"{shown(line)!r}\n    {said[:200]}", flush=True)
        print(f"{count} command lines; exit statuses {dict(statuses)}; {wrong} faults")
