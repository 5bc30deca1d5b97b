"""Processes of gloo, one of whose threads may abort a process that ends while they run."""

import sys
from pathlib import Path

import torch
import torch._dynamo  # each wrapper needs it: forks of this process need not import it themselves
import torch.distributed as dist


def found_by_ranks(start, folder, ranks):
    """Run `start(rank, folder)` in a process for each rank on the CPU; return what each wrote to `{rank}.pt`.

    The processes are forks, which have imported torch. A process that has a GPU cannot fork.
    """
    method = "spawn" if torch.cuda.is_available() else "fork"
    torch.multiprocessing.start_processes(start, args=(str(folder),), nprocs=ranks, start_method=method)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]


def leave():
    """Destroy the process group, and check that its threads have ended."""
    dist.destroy_process_group()
    check_ended()


def check_ended():
    """Check that no thread of gloo runs in this process; only Linux tells the names of threads."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert names or not sys.platform.startswith("linux")
    assert not [name for name in names if "gloo" in name], "something still owns the process group"
