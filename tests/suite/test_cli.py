"""The command line as a user meets it: what is wrong is one line and exit status 2, and nothing was written."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import reports
from suite import cli, registry
from suite.engines import local
from suite.options import read_config, read_run_options

ROOT = Path(__file__).resolve().parents[2]

# A method, a task and a model that need nothing of the project's own.
TOY = textwrap.dedent(
    """
    from typing import Literal

    from torch import nn

    from suite.errors import MissingData, UsageError
    from suite.method import Method
    from suite.recipe import Recipe
    from suite.registry import register
    from suite.task import DataCopy, Splits, Task

    @register("method", "toy_method")
    class ToyMethod(Method):
        '''A method for tests.'''
        source = "nowhere"
        n: int = 2
        mode: Literal["random", "magnitude"] = "magnitude"

        def __post_init__(self):
            if self.n > 4:
                raise ValueError(f"n is {self.n}; the largest is 4")

        @classmethod
        def defaults(cls, task, preset):
            return {"n": 1} if preset == "smoke" else {}

    class ToyBatches:
        num_samples = 12

        def steps_per_epoch(self, batch_size):
            if batch_size > 12:
                raise UsageError("a batch of 13 is more than the 12 images")
            return 12 // batch_size

    @register("task", "toy_task")
    class ToyTask(Task):
        '''A task for tests.'''
        title = "Toy"
        num_classes = 3
        input_shape = (1, 8, 8)

        def default_model(self, preset):
            return "toy_model[width=2]"

        def recipe(self, preset):
            return Recipe(epochs=3, batch_size=4, learning_rate=1)

        def prepare(self, data_root, preset):
            return DataCopy("original", "ab" * 32, note="made up")

        def load(self, copy, recipe, seed, device):
            return Splits(ToyBatches(), ToyBatches())

    @register("task", "missing_task")
    class MissingTask(ToyTask):
        '''A task without data.'''

        def prepare(self, data_root, preset):
            raise MissingData("toys are sold out")

    @register("model", "toy_model")
    def toy_model(*, width: float = 1.0, num_classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
        '''A model for tests.'''
        if width <= 0:
            raise ValueError(f"width is {width}; it must be positive")
        return nn.Sequential(nn.Conv2d(input_shape[0], int(8 * width), 3), nn.Flatten(), nn.LazyLinear(num_classes))
    """
)
GOOD = ["--plugin", "toy.py", "--methods", "toy_method", "--task", "toy_task", "--device", "cpu", "--preset", "smoke"]

# Ends each trial as its method's parameter n says, without training.
CHILD = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from suite.engines.lifeline import watch_parent
    from suite.store import read_record, write_record
    from suite.spec import TrialSpec

    watch_parent()
    folder = Path(sys.argv[1])
    spec = TrialSpec.from_json(read_record(folder)["spec"])
    with open(folder / "starts", "a") as file:
        file.write("x")
    (folder / "model.pt").touch()
    if spec.parameters["n"] == 3:
        raise RuntimeError("three is too many")
    result = {"test_accuracy": 0.75, "train_time_s": 2.0, "train_flops_dense": 4, "train_flops_executed": 4}
    write_record(folder, spec, "done", result={**result, "train_flops_effective": 3.0})
    """
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder, which is the home too, with the toy plugin in it."""
    for name in ("PDT_DATA", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.py").write_text(TOY)
    return tmp_path


@pytest.fixture
def forget_toys(monkeypatch):
    """Takes out of the registry what a test's plugin put there."""
    monkeypatch.setattr(registry, "_objects", dict(registry._objects))
    monkeypatch.setattr(registry, "_plugin_entries", dict(registry._plugin_entries))
    yield
    for name in [name for name in sys.modules if name.startswith("pdt_plugin_toy_")]:
        del sys.modules[name]


def pdt(*arguments, **keywords):
    command = [sys.executable, str(ROOT / "run_suite.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **keywords)


def listing(folder):
    return sorted((str(path), path.stat().st_size) for path in folder.rglob("*"))


NAMES = [
    (["--methods", "sdpg"], "did you mean 'sdgp'"),
    (["--task", "cifar11"], "did you mean 'cifar10'"),
    (["--model", "resnet8"], "did you mean 'resnet9'"),
    (["--seeds", "x"], "--seeds 'x'"),
    (["--seeds", "0,0"], "comes twice"),
    (["--epochs", "-1"], "--epochs -1"),
    (["--epochs", "two"], "an integer"),
    (["--batch-size", "0"], "--batch-size 0"),
    (["--methods", "dense[n=2"], "never closed"),
    (["--methods", "dense]"], "closes nothing"),
    (["--methods", "dense[n]"], "not key=value"),
    (["--methods", "dense[]"], "not key=value"),
    (["--methods", "dense,"], "expected name"),
    (["--methods", "dense", "sdgp"], "has commas and no spaces"),
    (["--task", "digits[a=1]"], "takes no parameters"),
    (["--set", "recipe.epoch=3"], "did you mean 'epochs'"),
    (["--set", "recipe.epochs"], "expected recipe.key=value"),
    (["--epochs", "3", "--set", "recipe.epochs=4"], "given twice"),
    (["--preset", "fast"], "--preset 'fast': no preset is called so; known: paper, quick, smoke"),
    (["--device", "gpu"], "--device 'gpu'"),
    (["--dtype", "float61"], "did you mean 'float16'"),
    (["--set", "recipe.execution=graph"], "allowed: eager, compile, cuda_graph"),
    (["--only", "mising"], "did you mean 'missing'"),
    (["--jobs", "0"], "--jobs '0'"),
    (["--engine", "ray"], "--engine 'ray'"),
    (["--timeout", "0"], "--timeout '0'"),
    (["--data-root", "toy.py"], "is a file"),
    (["--data-root", "toy.py/below"], "is a file"),
    (["--plugin", "absent.py"], "no such file"),
    (["--config", "absent.toml"], "--config absent.toml"),
    (["--nproc-per-trial", "2"], "no option is called '--nproc-per-trial'"),
    (["--method", "dense"], "did you mean '--methods'"),
    (["--seeds"], "expected one argument"),
    (["plan"], "no verb is called 'plan'"),
    (["reprot", "x"], "did you mean 'report'"),
    (["report", "absent"], "no suite.json"),
    (["describe", "resnet8"], "did you mean 'resnet9'"),
    (["describe"], "required: NAME"),
    (["check", "sdpg"], "did you mean 'sdgp'"),
    (["--sede", "2"], "did you mean '--seeds'"),
]


@pytest.mark.parametrize(
    ("arguments", "expected"), NAMES, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_what_is_wrong_is_found_before_torch_is_imported(folder, capsys, monkeypatch, arguments, expected):
    # In this process, for speed; `test_a_user_sees_one_line` starts real ones.
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it would now fail
    before = listing(folder)
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pdt: error: ")
    assert captured.err.count("\n") == 1
    assert expected in captured.err
    assert listing(folder) == before


WRONG = [
    (["--methods", "sdpg"], "did you mean 'sdgp'"),
    (["--task", "cifar11"], "did you mean 'cifar10'"),
    (["--seeds", "x"], "--seeds 'x'"),
    (["--epochs", "-1"], "--epochs -1"),
    (["--methods", "dense[n=2"], "never closed"),
    (["--plugin", "raises.py", "--methods", "dense"], "RuntimeError: line one line two"),
    ([*GOOD, "--out", "toy.py"], "is a file"),
    ([*GOOD, "--out", "."], "no suite.json"),
    ([*GOOD, "--methods", "toy_method[n=5]"], "toy_method[n=5]: n is 5; the largest is 4"),
    ([*GOOD, "--device", "cpu", "--dtype", "float16"], "on the CPU type bfloat16, float32 or auto"),
    ([*GOOD, "--device", "cpu", "--set", "recipe.execution=cuda_graph"], "no CUDA graphs on 'cpu'"),
]


@pytest.mark.parametrize(
    ("arguments", "expected"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_user_sees_one_line(folder, arguments, expected):
    (folder / "raises.py").write_text(
        "from suite.registry import register\n@register('model', 'bad')\nclass Bad: pass\n"
        "raise RuntimeError('line one\\nline two')"
    )
    before = listing(folder)
    answer = pdt(*arguments)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr.startswith("pdt: error: ")
    assert answer.stderr.count("\n") == 1
    assert expected in answer.stderr
    assert listing(folder) == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("method = 'dense'", "no option is called 'method'; did you mean 'methods'"),
        ("config = 'x'", "no option is called 'config'"),
        ("batch_size = 3\nbatch-size = 4", "given twice"),
        ("methods = {a = 1}", "allowed: text or a number"),
        ("set = 'recipe.epochs=3'", "must be a table"),
        ("methods = ", "Invalid value"),
        ("[set.recipe]\nepoch = 3", "did you mean 'epochs'"),
        ("[set.recipe]\nepochs = 'x'", "an integer"),
        ("seeds = -1", "--seeds '-1'"),
    ],
)
def test_a_config_that_is_wrong(folder, capsys, text, expected):
    (folder / "c.toml").write_text(text)
    before = listing(folder)
    assert cli.main(["--config", "c.toml"]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.count("\n") == 1
    assert listing(folder) == before


def test_a_config_gives_what_is_not_typed(folder, monkeypatch):
    (folder / "c.toml").write_text(
        "methods = ['dense', 'sdgp[n=1,m=4]']\nseeds = [3]\njobs = 2\nbatch_size = 8\ntimeout = 1.5\n"
        "data-root = 'there'\n[set.recipe]\nlearning_rate = 1\nepochs = 7\nmilestones = [0.5, 0.75]\nflip = false\n"
    )
    options = read_run_options(["--config", "c.toml", "--epochs", "2", "--jobs", "3"])
    assert options.methods == "dense,sdgp[n=1,m=4]"
    assert options.seeds == (3,)
    assert (options.jobs, options.timeout) == (3, 1.5)
    assert options.data_root == folder / "there"
    expected = {"batch_size": 8, "learning_rate": 1.0, "epochs": 2, "milestones": (0.5, 0.75), "flip": False}
    assert options.overrides == expected
    (folder / "c.toml").write_text("seeds = 3\nplugin = 'toy.py'")
    assert read_config(folder / "c.toml") == {"seeds": "3", "plugin": ["toy.py"]}
    monkeypatch.setenv("PDT_DATA", "/elsewhere")
    assert read_run_options([]).data_root == Path("/elsewhere")
    assert read_run_options(["--data-root", "/x"]).data_root == Path("/x")


def test_list_imports_no_torch(folder):
    answer = pdt("list", "--json")
    assert answer.returncode == 0
    assert "local" in [item["name"] for item in json.loads(answer.stdout)["engines"]]
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from suite.cli import main; main(['list']); main(['--help'])"
    )
    answer = subprocess.run([sys.executable, "-X", "importtime", "-c", script], capture_output=True, text=True)
    imported = {
        line.rpartition("|")[2].strip() for line in answer.stderr.splitlines() if line.startswith("import time:")
    }
    assert "suite.options" in imported
    assert not imported & {"torch", "numpy", "pandas", "pyarrow", "matplotlib"}


def test_help_names_every_option_and_verb():
    answer = pdt("--help")
    assert answer.returncode == 0
    for word in (
        "--methods",
        "--seeds",
        "--config",
        "describe NAME",
        "reproduce NAME",
        "exit status",
        "examples",
        "runs/TASK-HASH",
    ):
        assert word in answer.stdout
    assert "--nproc" not in answer.stdout


def test_describe(folder, capsys, forget_toys):
    toys = ["--plugin", "toy.py"]
    assert cli.main(["describe", "toy_method", "--task", "toy_task", "--json", *toys]) == 0
    method = json.loads(capsys.readouterr().out)
    assert (method["name"], method["source"], method["version"]) == ("toy_method", "nowhere", 1)
    n, mode = method["parameters"]
    assert (n["name"], n["type"], n["default"], n["presets"]["smoke"]) == ("n", "int", 2, 1)
    assert mode["type"] == "random | magnitude"
    assert cli.main(["describe", "toy_task", "--json", *toys]) == 0
    task = json.loads(capsys.readouterr().out)
    assert (task["title"], task["classes"], task["recipes"]["paper"]["epochs"]) == ("Toy", 3, 3)
    assert cli.main(["describe", "toy_method", *toys]) == 0
    assert "n: int = 2 (smoke 1)" in capsys.readouterr().out


def test_describe_a_model(capsys):
    assert cli.main(["describe", "resnet9[width=0.25]", "--json"]) == 0
    model = json.loads(capsys.readouterr().out)
    assert model["name"] == "resnet9[width=0.25]"
    assert model["input_shape"] == [3, 32, 32]
    assert model["inference_flops"] == 2 * model["macs"] > 2 * model["params"] > 0


@pytest.fixture
def suite(folder, monkeypatch, forget_toys):
    """Runs suites of toy trials in this process, with a stand-in for the trial's process and for the report."""
    (folder / "child.py").write_text(CHILD)
    monkeypatch.setattr(local, "trial_command", lambda path: [sys.executable, str(folder / "child.py"), str(path)])

    def write_report(path):
        (path / "report.html").write_text("x")
        return [path / "report.html"]

    monkeypatch.setattr(reports, "write_report", write_report)
    return lambda *arguments: cli.main([*GOOD, *arguments])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--methods", "toy_method[n=5]"], "toy_method[n=5]: n is 5; the largest is 4"),
        (["--methods", "toy_method[k=5]"], "has no parameter 'k'"),
        (["--methods", "toy_method[mode=rando]"], "allowed: random, magnitude"),
        (["--model", "toy_model[width=0]"], "toy_model[width=0.0]: width is 0.0"),
        (["--set", "recipe.peak_at=2"], "recipe.peak_at is 2.0"),
        (["--batch-size", "13"], "task toy_task: a batch of 13 is more than the 12 images"),
        (["--set", "recipe.split_seed=-1"], "recipe.split_seed is -1"),
        (["--set", "recipe.nesterov=true", "--set", "recipe.momentum=0"], "recipe.nesterov needs"),
        (["--device", "cuda"], "type --device cpu"),
        (["--task", "toy_task,missing_task"], "toys are sold out"),
    ],
)
def test_what_needs_the_things_themselves_is_found_before_anything_is_written(
    suite, folder, capsys, monkeypatch, arguments, expected
):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = listing(folder)
    assert suite(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pdt: error: ")
    assert captured.err.count("\n") == 1
    assert expected in captured.err
    assert listing(folder) == before


def starts(out):
    return sorted(len(path.read_text()) for path in out.glob("trials/*/starts"))


def test_a_run_from_command_to_report(suite, folder, capsys):
    assert suite("--methods", "toy_method[mode=random|magnitude],toy_method", "--seeds", "2") == 0
    captured = capsys.readouterr()
    (out,) = (folder / "runs").iterdir()
    assert out.name.startswith("toy_task-")
    # toy_method is toy_method[mode=magnitude], so that 2 seeds of 2 trials are left.
    assert starts(out) == [1, 1, 1, 1]
    assert (out / "report.html").is_file()
    assert (out / "results.csv").read_text().count("\n") == 5
    assert "75.00 %" in captured.out
    assert f"report: {out / 'report.html'}" in captured.out
    assert sorted(path.name for path in out.iterdir()) == [
        ".lock",
        "report.html",
        "results.csv",
        "results.parquet",
        "suite.json",
        "trials",
    ]
    content = json.loads((out / "suite.json").read_text())
    assert content["spec"]["preset"] == "smoke"
    record = json.loads(next(out.glob("trials/*/trial.json")).read_text())
    assert record["spec"]["parameters"]["n"] == 1  # the preset's, since none was typed
    assert record["spec"]["model"] == "toy_model[width=2.0]"

    # The same command finds its folder and its trials done; `all` runs them from the beginning.
    assert suite("--methods", "toy_method[mode=random|magnitude],toy_method", "--seeds", "2") == 0
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
    # Another command adds its trials to the folder, and answers for them alone.
    assert suite("--methods", "toy_method[n=2]", "--out", "out") == 0
    assert starts(out) == [1, 1, 2]
    assert (out / "results.csv").read_text().count("\n") == 4
    capsys.readouterr()
    assert cli.main(["report", "out"]) == 0
    assert capsys.readouterr().out == f"report: {Path('out', 'report.html')}\n"


def test_a_folder_in_use_is_refused(suite, folder, capsys):
    script = "import sys, time; from suite.store import Store; from pathlib import Path\n"
    script += "with Store(Path(sys.argv[1])).lock(): print('held', flush=True); time.sleep(100)"
    command = [sys.executable, "-c", script, str(folder / "out")]
    holder = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    try:
        before = listing(folder)
        assert suite("--out", "out") == 2
        assert f"is in use by process {holder.pid}" in capsys.readouterr().err
        assert listing(folder) == before
    finally:
        holder.kill()
        holder.wait()
    assert suite("--out", "out") == 0


def test_ctrl_c_gives_130_and_the_same_command_goes_on(suite, folder):
    driver = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        from suite import cli
        from suite.engines import local
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


def test_a_programming_error_keeps_its_traceback(suite, folder):
    (folder / "toy.py").write_text(TOY.replace('return DataCopy("original"', 'return undefined("original"'))
    with pytest.raises(NameError):
        suite()


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} {ROOT / 'run_suite.py'} list --json | head -c 1"
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=os.environ)
    assert answer.stderr == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sdgp[n=9,m=4]", "sdgp[n=9,m=4]: n is 9; it lies between 1 and m, which is 4"),
        ("resnet9[width=8000]", "resnet9[width=8000.0]: does not fit into memory"),
        ("resnet9[width=0.3]", "use a multiple of 1/128"),
    ],
)
def test_describe_refuses_what_run_would(capsys, name, expected):
    assert cli.main(["describe", name]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert expected in captured.err


def test_a_recipe_is_told_by_what_it_changes(capsys):
    assert cli.main(["describe", "digits"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  paper    as quick, but epochs 40" in lines
    assert max(map(len, lines)) <= 120


def test_a_polite_kill_ends_as_an_interruption(folder):
    (folder / "slow.py").write_text(TOY + "import time\nToyTask.prepare = lambda *arguments: time.sleep(60)\n")
    command = [sys.executable, str(ROOT / "run_suite.py"), *GOOD[2:], "--plugin", "slow.py"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    time.sleep(6)
    running.terminate()
    _, errors = running.communicate(timeout=30)
    assert running.returncode == 130
    assert errors == "pdt: interrupted\n"
