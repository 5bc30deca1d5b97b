"""What commands say about a number format that the processor has no arithmetic for, and `check --dtype`."""

import json

import pytest
import torch

from suite.cli import main as cli
from suite.engine.cost import hardware
from suite.engine.training import conformance
from suite.engine.training.conformance.subject import Subject
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


def test_a_method_is_checked_in_bfloat16(monkeypatch):
    subject = Subject("dense", dtype="bfloat16")
    assert subject.trainer().dtype == torch.bfloat16
    assert Subject("dense").trainer().dtype == torch.float32


@pytest.mark.usefixtures("zen_3")
def test_a_trial_records_that_its_numbers_were_emulated(tmp_path):
    for dtype in ("bfloat16", "float32"):
        spec = TrialSpec(
            method="absent", task="digits", model="resnet9", preset="smoke", recipe={"epochs": 1, "batch_size": 1,
            "learning_rate": 1.0}, seed=0, device="cpu", dtype=dtype, data_copy={"checksum": ""},
        )  # fmt: skip
        provenance = {}
        write_record(tmp_path, spec, "running")
        with pytest.raises(Exception, match="absent"):
            TrialRun(spec, tmp_path).run({}, provenance)
        assert provenance.get("emulated_dtype") == (dtype if dtype == "bfloat16" else None), json.dumps(provenance)


def test_a_run_says_before_its_trials_that_kernels_are_refused(suite, folder, tmp_path, monkeypatch, caplog):
    cache = tmp_path / "shared"
    cache.mkdir()
    cache.chmod(0o777)
    monkeypatch.setenv("PDT_CACHE", str(cache))
    monkeypatch.setenv("PDT_CPU_ARCH", "native")
    monkeypatch.delenv("PDT_CPU_KERNEL", raising=False)
    begins = "plain torch runs instead of the compiled CPU kernels, many times slower, because "

    def said():
        caplog.clear()
        assert suite("--out", "out", "--only", "all") == 0
        return [one.removeprefix(begins) for one in caplog.messages if one.startswith(begins)]

    assert said()[0].startswith(f"the cache {cache} is not used: others can write to it (mode 0777)")
    cache.chmod(0o700)
    assert not said()
    monkeypatch.setenv("PDT_CPU_ARCH", "avx2")
    assert said() == ["$PDT_CPU_ARCH is 'avx2', and may be native, x86-64, x86-64-v2, x86-64-v3, x86-64-v4"]
    monkeypatch.setenv("PDT_CPU_KERNEL", "0")
    assert not said()
