"""The check that each process of a trial has a device, for machines with GPUs that this one need not have."""

import pytest
import torch

from suite.cli.options import read_run_options
from suite.cli.preparation import resolve
from suite.errors import UsageError
from suite.trials.building import check_processes


def test_each_process_needs_a_gpu_of_this_machine_unless_others_train(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    check_processes(4, "cuda", "cuda", count=True)
    check_processes(64, "auto", "cpu", count=True)
    with pytest.raises(UsageError, match="--nproc-per-trial 5: this machine has 4 GPU"):
        check_processes(5, "auto", "cuda", count=True)
    check_processes(64, "auto", "cuda", count=False)
    with pytest.raises(UsageError, match="--device cuda:1 names one GPU"):
        check_processes(2, "cuda:1", "cuda", count=False)


def test_machines_of_a_cluster_need_the_gpus_and_not_this_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("suite.cli.preparation.resolve_device", lambda text: ("cuda", None))
    command = ["--methods", "dense", "--task", "digits", "--dtype", "float32", "--nproc-per-trial", "8"]
    with pytest.raises(UsageError, match="this machine has 1 GPU"):
        resolve(read_run_options(command))
    assert resolve(read_run_options([*command, "--engine", "ray"])).processes == 8
