"""Autograd runs in forked processes, although earlier tests of the same process used fake tensors."""

import os

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def test_autograd_runs_in_a_fork_after_fake_tensors():
    with FakeTensorMode():
        torch.ones(2)
    torch.ones(1, requires_grad=True).sum().backward()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            torch.ones(1, requires_grad=True).sum().backward()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
