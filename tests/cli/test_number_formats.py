"""What commands say about a number format that the processor has no arithmetic for, and `check --dtype`."""

import copy
import dataclasses
import json

import pytest
import torch
from small_trials import put
from toy_suite import forget_plugins

from suite import registry
from suite.cli import main as cli
from suite.cli import preparation
from suite.cli.options import read_run_options
from suite.cli.preparation import formats_in, prepare
from suite.engine.cost import hardware
from suite.engine.training import conformance
from suite.engine.training.conformance.subject import Subject
from suite.measure import number_format
from suite.measure.calls import SubprocessResult
from suite.trials.folder.records import write_record
from suite.trials.spec import TrialSpec
from suite.trials.trial_run import TrialRun

WARNING = "--dtype bfloat16: this processor has no bfloat16 arithmetic; --dtype float32 is many times faster"


@pytest.fixture
def zen_3(tmp_path, monkeypatch):
    """Let this process take its processor for one with AVX2 only."""
    real, path = hardware.read_cpu, tmp_path / "cpuinfo"
    path.write_text("vendor_id : AuthenticAMD\nflags\t\t: fpu sse4_2 avx avx2 fma\n")
    monkeypatch.setattr(hardware, "read_cpu", lambda *given: real(path))


@pytest.fixture
def zen_4(tmp_path, monkeypatch):
    """Let this process take its processor for one that multiplies bfloat16, and measure in this process."""
    real, path = hardware.read_cpu, tmp_path / "cpuinfo"
    path.write_text("vendor_id : AuthenticAMD\nflags\t\t: fpu avx512f avx512_bf16\n")
    monkeypatch.setattr(hardware, "read_cpu", lambda *given: real(path))
    monkeypatch.setenv("PDT_CHOICES", str(tmp_path / "choices"))
    monkeypatch.setattr(number_format, "MOST_PAIRS", 3)
    measured = []

    def call(function, arguments, device, *rest):
        assert function == "suite.measure.number_format:measure"
        measured.append(number_format.measure(**arguments))
        return SubprocessResult(measured[-1], "", 0.0)

    monkeypatch.setattr(number_format, "call_in_subprocess", call)
    return measured


@pytest.fixture
def faster(zen_4, monkeypatch):
    """Let float32 be faster, without a measurement."""
    monkeypatch.setattr(number_format, "measure", lambda spec: {"median": 0.5, "low": 0.4, "high": 0.9})
    return zen_4


MLP = ("--preset", "quick", "--batch-size", "4", "--model", "mlp[width=8,depth=1]")


def prepared(*typed, methods="dense"):
    return prepare(read_run_options(["--methods", methods, "--task", "digits", "--device", "cpu", *typed]))


def answer(folder, **ratio):
    """Replace the stored ratios of float32's time to bfloat16's."""
    for path in folder.glob("dtype-*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "ratio": {"median": 0.5, "low": 0.4, **ratio}}))


def test_auto_measures_once_which_type_is_faster(zen_4, tmp_path, caplog):
    caplog.set_level("INFO")
    _, (trial,), first, _ = prepared(*MLP)
    assert len(zen_4) == 1
    assert 0 < zen_4[0]["low"] <= zen_4[0]["median"] <= zen_4[0]["high"]
    assert trial.dtype == ("float32" if zen_4[0]["high"] <= 0.9 else "bfloat16")
    # A stored answer decides the type, and never the name of the folder.
    for high, expected in ((0.9, "float32"), (0.91, "bfloat16")):
        answer(tmp_path / "choices", high=high)
        _, (trial,), folder, _ = prepared(*MLP)
        assert (trial.dtype, folder) == (expected, first)
    assert len(zen_4) == 1
    assert "trained in bfloat16; a step in float32 takes 0.50 (0.40 to 0.91)" in caplog.text
    assert "of one in bfloat16, and would have to take at most 0.90 in the whole interval" in caplog.text
    # Each network has its own answer.
    answer(tmp_path / "choices", high=0.9)
    for _ in range(2):
        trials = prepared(*MLP[:-1], f"{MLP[-1]},resnet9[width=0.0625]", "--seeds", "2")[1]
    other = "float32" if zen_4[1]["high"] <= 0.9 else "bfloat16"
    assert [trial.dtype for trial in trials] == ["float32", "float32", other, other]
    assert len(zen_4) == 2


@pytest.mark.usefixtures("faster")
def test_an_answer_is_that_of_one_question():
    trial, narrow = prepared(*MLP[:-1], f"{MLP[-1]},mlp[width=16,depth=1]")[1]
    recipes = [trial.recipe | changed for changed in ({"mixup": 0.5}, {"batch_size": 8})]
    others = [narrow, *(dataclasses.replace(trial, recipe=one) for one in recipes)]
    others += [dataclasses.replace(trial, processes=2), dataclasses.replace(trial, arithmetic="other")]
    asked = [(trial, 1), (trial, 2), *((one, 1) for one in others)]
    assert len({number_format._path(number_format._question(*one)) for one in asked}) == 7
    question = number_format._question(trial, 1)
    paths = {number_format._path(question | {changed: "other"}) for changed in question}
    assert len(paths - {number_format._path(question)}) == len(question)


def test_steps_that_are_timed_move_no_weight(zen_4, monkeypatch):
    real, built = number_format.build_trainer, []

    def build(*given, **named):
        built.append(trainer := real(*given, **named))
        trainer.first = copy.deepcopy(list(trainer.model.parameters()))
        return trainer

    monkeypatch.setattr(number_format, "build_trainer", build)
    prepared(*MLP, "--set", "recipe.lr_start=0.5")
    assert [trainer.dtype for trainer in built] == [torch.float32, torch.bfloat16]
    for trainer in built:
        assert trainer.ctx.step
        assert all(map(torch.equal, trainer.first, trainer.model.parameters()))


def test_a_folder_has_the_format_of_its_first_trial_on_the_device(zen_4, tmp_path):
    (trial,) = prepared(*MLP, "--dtype", "float32")[1]
    specs = [dataclasses.replace(trial, dtype=dtype) for dtype in ("float32", "bfloat16")]
    for spec in specs:
        put(tmp_path, spec, "running")
    first = min(specs, key=lambda spec: spec.trial_id)
    assert formats_in(tmp_path, "cpu") == {(trial.task, trial.model): first.dtype}
    assert formats_in(tmp_path, "cuda") == {}


def test_auto_keeps_the_type_of_a_folder_and_does_not_delay_smoke(zen_4, tmp_path):
    assert prepared("--preset", "smoke")[1][0].dtype == "bfloat16"
    out = ("--out", str(tmp_path / "out"))
    for dtype in ("float32", "bfloat16"):
        (spec,) = prepared(*MLP, *out, "--dtype", dtype)[1]
        folder = put(tmp_path / "out", spec, "running")
        (tmp_path / "out" / "suite.json").write_text("{}")
        assert prepared(*MLP, *out)[1] == [spec]
        (folder / "trial.json").unlink()
        folder.rmdir()
    assert not zen_4


@pytest.mark.usefixtures("zen_3")
def test_a_run_says_once_that_bfloat16_is_emulated(suite, folder, caplog):
    assert suite("--dtype", "bfloat16", "--out", "out") == 0
    assert caplog.messages.count(WARNING) == 1
    caplog.clear()
    for more in (["--dtype", "float32"], ["--dtype", "auto"]):
        assert suite(*more, "--out", "out") == 0
    assert WARNING not in caplog.messages


@pytest.mark.usefixtures("zen_3")
def test_a_check_says_so_and_trains_in_the_type_that_was_asked_for(monkeypatch, caplog, capsys):
    trained = []

    def check(*arguments):
        trained.append(arguments[-1])
        return [conformance.Result("trains", True, "")]

    monkeypatch.setattr(conformance, "check", check)
    for more in ([], ["--dtype", "bfloat16"], ["--dtype", "auto"], ["--dtype", "float32"]):
        assert cli.main(["check", "dense", *more]) == 0
    assert trained == ["float32", "bfloat16", "float32", "float32"]
    assert caplog.messages == [WARNING]
    capsys.readouterr()
    for typed in ("float16", "float8"):
        assert cli.main(["check", "dense", "--dtype", typed]) == 2
        assert capsys.readouterr().err.startswith(f"pdt: error: --dtype {typed}" if typed == "float16" else "pdt: ")


def test_a_method_is_checked_in_bfloat16():
    assert Subject("dense", dtype="bfloat16").trainer().dtype == torch.bfloat16


@pytest.mark.usefixtures("zen_3")
def test_a_trial_records_that_its_numbers_were_emulated(tmp_path):
    for dtype in ("bfloat16", "float32"):
        spec = TrialSpec(
            method="absent", task="digits", model="resnet9", preset="smoke", recipe={"epochs": 1, "batch_size": 1,
            "learning_rate": 1.0}, seed=0, device="cpu", dtype=dtype, data_copy={"checksum": ""},
        )  # fmt: skip
        write_record(tmp_path, spec, "running")
        run = TrialRun(spec, tmp_path)
        with pytest.raises(Exception, match="absent"):
            run.run()
        assert run.provenance.get("emulated_dtype") == (dtype if dtype == "bfloat16" else None)


def test_a_run_says_before_its_trials_that_kernels_are_refused(suite, folder, tmp_path, monkeypatch, caplog):
    cache = tmp_path / "shared"
    cache.mkdir()
    cache.chmod(0o777)
    monkeypatch.setenv("PDT_CACHE", str(cache))
    monkeypatch.setenv("PDT_CPU_ARCH", "native")
    monkeypatch.delenv("PDT_CPU_KERNEL", raising=False)
    compiled = []
    monkeypatch.setattr(preparation, "compile_kernels", compiled.append)
    begins = "plain torch runs instead of the compiled CPU kernels, many times slower, because "

    def said():
        caplog.clear()
        assert suite("--out", "out", "--only", "all") == 0
        return [one.removeprefix(begins) for one in caplog.messages if one.startswith(begins)]

    assert not said()  # no method needs them
    monkeypatch.setattr(registry.get("method", "toy_method"), "cpu_kernels", ("prune_nm",))
    assert said()[0].startswith(f"the cache {cache} is not used: others can write to it (mode 0777)")
    assert compiled == [{"prune_nm"}]
    cache.chmod(0o700)
    assert not said()
    cache.chmod(0o777)
    monkeypatch.setenv("PDT_CPU_KERNEL", "0")
    assert not said()


@pytest.mark.usefixtures("faster")
def test_methods_that_were_left_out_stay_out_in_another_type():
    suite, trials, _, _ = prepared(*MLP, "--skip-unfit", methods="dense,clicktrain")
    assert [(trial.method, trial.dtype) for trial in trials] == [("dense", "float32")]
    assert [one["method"] for one in suite.left_out] == ["clicktrain"]


ONLY = """
from torch import nn
from suite.registry import register

class Only(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.linear = nn.Linear(256, num_classes)

    def forward(self, images):
        out = self.linear(images.flatten(1))
        if out.dtype.itemsize < 4:
            raise RuntimeError("no short numbers here")
        return out

@register("model", "only")
def only(*, num_classes: int):
    "Refuses bfloat16."
    return Only(num_classes)
"""


@pytest.mark.usefixtures("zen_4", "folder")
def test_a_network_that_fails_in_bfloat16_is_trained_in_float32(tmp_path, caplog):
    (tmp_path / "only.py").write_text(ONLY)
    caplog.set_level("INFO")
    trials = prepared(*MLP[:-1], f"only,{MLP[-1]}", "--plugin", str(tmp_path / "only.py"))[1]
    assert trials[0].dtype == "float32"
    assert "only: trained in float32, since bfloat16 fails: no short numbers here" in caplog.text
    assert not any("only" in path.read_text() for path in (tmp_path / "choices").glob("*"))
    forget_plugins()
