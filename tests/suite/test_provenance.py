"""What is recorded of a run's surroundings, and what is not."""

import json
import socket
import subprocess
from pathlib import Path

import pytest
import torch

from suite.provenance import _git, _output, collect, hardware_id, without_home


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


def test_times_of_different_hardware_have_different_ids():
    cpu = {"device": "cpu", "cpu": "A", "threads": 2}
    gpu = {"device": "cuda", "gpu": "H", "driver": "580.95.05"}
    ids = {
        hardware_id(hardware)
        for hardware in (cpu, {**cpu, "threads": 4}, {**cpu, "cpu": "B"}, gpu, {**gpu, "gpu": "L"})
    }
    assert len(ids) == 5
    assert hardware_id(gpu) == hardware_id({**gpu, "driver": "580.10"}) != hardware_id({**gpu, "driver": "590.1"})
    assert all(len(name) == 8 and name[0] == "h" for name in ids)


def test_git_of_a_checkout_and_of_none(tmp_path):
    assert _git(tmp_path) == {}
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    assert _git(tmp_path)["dirty"] is False
    assert len(_git(tmp_path)["commit"]) == 40
    Path(tmp_path, "method.py").write_text("x")
    assert _git(tmp_path)["dirty"] is True


def test_git_of_a_copy_without_its_history_is_in_a_file(tmp_path):
    file = tmp_path / ".commit.json"
    file.write_text('{"commit": "0123456789abcdef", "dirty": true}\n')
    assert _git(tmp_path) == {"commit": "0123456789abcdef", "dirty": True}
    for damaged in ("", "[]", '{"commit": 1}', "\udcff"):
        file.write_bytes(damaged.encode("utf-8", "surrogateescape"))
        assert _git(tmp_path) == {}


def test_a_program_that_is_missing_or_fails_leaves_the_fact_unknown():
    assert _output("no-such-program-anywhere") == ""
    assert _output("false") == ""
