"""Tests of the provenance that is recorded for a trial, and of facts that must not be recorded."""

import json
import socket
import subprocess
from pathlib import Path

import pytest
import torch

from suite.engine.cost.hardware import hardware_id, program_output, read_cpu
from suite.engine.cost.torch_hardware import use_threads_of_environment
from suite.files import without_home
from suite.trials.folder.table import minor_version
from suite.trials.process import command_line
from suite.trials.provenance import collect, git_facts
from suite.trials.trial_run import comparable


@pytest.fixture(scope="module")
def found():
    return collect("cpu")


def test_the_facts_are_there_and_plain(found):
    assert json.loads(json.dumps(found)) == found
    assert found["hardware"]["threads"] == torch.get_num_threads()
    assert found["hardware"]["memory_bytes"] > 2**28
    assert found["software"]["torch"].startswith(torch.__version__.partition("+")[0])
    assert found["hardware_id"] == hardware_id(found["hardware"])
    assert len(found["load_average"]) == 3
    assert found["time_utc"].endswith("Z")


def test_neither_host_nor_home_is_named(found, monkeypatch):
    assert socket.gethostname() not in json.dumps(found["hardware"])
    monkeypatch.setenv("HOME", "/home/someone")
    assert without_home("python /home/someone/x.py") == "python ~/x.py"
    monkeypatch.setenv("PDT_COMMAND_LINE", "pdt --out /home/someone/runs")
    monkeypatch.setenv("TORCH_HOME", "/home/someone/torch")
    again = collect("cpu")
    assert again["command_line"] == "pdt --out ~/runs"
    assert again["settings"]["environment"]["TORCH_HOME"] == "~/torch"


@pytest.mark.parametrize(("program", "shown"), [
    ("run_suite.py", "run_suite.py"), ("{here}/benchmarks/pipeline.py", "benchmarks/pipeline.py"),
    ("/opt/venv/bin/pdt", "pdt"),
])  # fmt: skip
def test_the_command_line_does_not_name_the_folder_of_its_program(tmp_path, monkeypatch, program, shown):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [program.format(here=tmp_path), "--out", "a b"])
    assert command_line() == f"{shown} --out 'a b'"


def cpuinfo(family: int, model: int, stepping: int, flags: str) -> str:
    one = (
        f"vendor_id\t: AuthenticAMD\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\n"
        f"stepping\t: {stepping}\nflags\t\t: fpu smep hypervisor sse4_2 avx fma {flags}\nbugs\t\t: x\n"
    )
    return "".join(f"processor\t: {index}\n{one}\n" for index in range(2))


AVX512 = "avx2 avx512f avx512bw avx512vl"
# Three virtual machines whose CPU is called "AMD EPYC": Zen 3, Zen 4 and Zen 5.
EPYCS = {
    "milan": cpuinfo(25, 1, 1, "avx2"),
    "genoa": cpuinfo(25, 17, 1, f"{AVX512} avx512_bf16"),
    "turin": cpuinfo(26, 2, 1, f"{AVX512} avx512_bf16 avx_vnni"),
}
ARM = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes asimddp sve i8mm bf16 dgh
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 2
"""


def hardware(tmp_path: Path, text: str, **changed: object) -> dict[str, object]:
    (tmp_path / "cpuinfo").write_text(text)
    return {"device": "cpu", **read_cpu(tmp_path / "cpuinfo").facts(), "cores": 2, "threads": 2, **changed}


def test_cpus_of_one_name_have_different_ids(tmp_path):
    found = {name: hardware(tmp_path, text) for name, text in EPYCS.items()}
    assert {one["cpu"] for one in found.values()} == {"AMD EPYC"}
    assert len({hardware_id(one) for one in found.values()}) == 3
    assert found["turin"]["cpu_family"] == "26"
    assert found["genoa"]["instruction_set"] == "avx avx2 avx512_bf16 avx512bw avx512f avx512vl fma sse4_2"
    genoa = found["genoa"]
    others = [("cpu_stepping", "2"), ("cores", 4), ("cpu_model", "160"), ("instruction_set", "avx avx2")]
    assert len({hardware_id({**genoa, name: value}) for name, value in others} | {hardware_id(genoa)}) == 5


def test_threads_are_a_setting_and_not_hardware(tmp_path):
    one, other = (hardware(tmp_path, EPYCS["genoa"], threads=threads) for threads in (1, 2))
    assert hardware_id(one) == hardware_id(other)
    before = {"hardware": one, "hardware_id": hardware_id(one), "git": {}, "software": {}}
    assert comparable(before) != comparable({**before, "hardware": other})  # a resumed trial says so


@pytest.mark.parametrize(("variable", "threads"), [("1", 1), ("1,4", 1), ("0", 2), ("", 2)])
def test_torch_takes_the_threads_of_the_outer_level(monkeypatch, variable, threads):
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    try:
        torch.set_num_threads(2)
        use_threads_of_environment()
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_arm_spells_the_same_facts_otherwise(tmp_path):
    facts = hardware(tmp_path, ARM)
    assert (facts["cpu_vendor"], facts["cpu_family"], facts["cpu_model"]) == ("0x41", "8", "0xd40")
    assert facts["cpu_stepping"] == "r1p2"
    assert facts["instruction_set"] == "asimd asimddp bf16 fp i8mm sve"
    assert hardware_id(facts) != hardware_id(hardware(tmp_path, ARM.replace("0xd40", "0xd4f")))
    assert read_cpu(tmp_path / "cpuinfo").bfloat16
    assert read_cpu(tmp_path / "absent").instructions == ()


def test_gpus_differ_by_name_and_by_the_driver_s_major_version():
    gpu = {"device": "cuda", "gpu": "H", "driver": "580.95.05"}
    assert hardware_id(gpu) == hardware_id({**gpu, "driver": "580.10"}) != hardware_id({**gpu, "driver": "590.1"})
    assert hardware_id(gpu) != hardware_id({**gpu, "gpu": "L"})
    assert len(hardware_id(gpu)) == 8
    assert hardware_id(gpu)[0] == "h"


def test_versions_differ_by_major_and_minor_number():
    versions = ("2.15.0+cu132", "2.15.1", "2.16.0a0+gitabc", "")
    assert [minor_version(version) for version in versions] == ["2.15", "2.15", "2.16", ""]


def test_git_of_a_checkout_and_of_none(tmp_path):
    assert git_facts(tmp_path) == {}
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    assert git_facts(tmp_path)["dirty"] is False
    assert len(git_facts(tmp_path)["commit"]) == 40
    Path(tmp_path, "method.py").write_text("x")
    assert git_facts(tmp_path)["dirty"] is True


def test_a_program_that_is_missing_or_fails_leaves_the_fact_unknown():
    assert program_output("no-such-program-anywhere") == ""
    assert program_output("false") == ""
