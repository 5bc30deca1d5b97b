"""Processes of gloo, one of whose threads may abort a process that ends while they run."""

import gc
import sys
from pathlib import Path

import torch
import torch._dynamo  # each wrapper needs it: forks of this process need not import it themselves
import torch.distributed as dist


def found_by_ranks(find, folder, ranks):
    """Return what `find(rank, folder)` returns in a process for each rank on the CPU.

    The processes are forks, which have imported torch. A process that has a GPU cannot fork.
    """
    method = "spawn" if torch.cuda.is_available() else "fork"
    torch.multiprocessing.start_processes(_run, args=(find, str(folder), ranks), nprocs=ranks, start_method=method)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]


def _run(rank, find, folder, ranks):
    """Write what one rank finds to a file, destroy the process group, and check that its threads have ended."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    torch.save(find(rank, folder), f"{folder}/{rank}.pt")
    gc.collect()  # a wrapper refers to the group, and is part of cycles
    dist.destroy_process_group()
    check_ended()


def check_ended():
    """Check that no thread of gloo runs in this process; only Linux tells the names of threads."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert names or not sys.platform.startswith("linux")
    assert not [name for name in names if "gloo" in name], "something still owns the process group"
