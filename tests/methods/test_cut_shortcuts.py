"""PruneTrain with few channels left in the shortcuts: it trains to the end, and the weight gradients are right."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import cut_shortcuts
import pytest
import torch

ROOT = Path(__file__).parents[2]
LIMITS = {"float32": 1e-4, "bfloat16": 2e-2}


def train(counts, dtype, threads, isa):
    """Train in a separate process, because oneDNN may crash; `isa` limits the instruction set."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # Threads that wait do not spin: with fewer free cores than threads that takes several times as long.
    settings = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    if isa:
        settings["ONEDNN_MAX_CPU_ISA"] = isa
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("cut_shortcuts.py"), *map(str, counts), dtype],
        env={**os.environ, "PYTHONPATH": path, **settings},
        capture_output=True, text=True, timeout=min(540, 60 + 60 * len(counts)),
    )  # fmt: skip
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    check([json.loads(line) for line in done.stdout.splitlines()], counts, dtype)


def check(found, counts, dtype):
    assert [one["count"] for one in found] == list(counts)
    for one in found:
        assert [[*channels] for channels in one["channels"]] == [[one["count"]] * 2] * 2
        assert one["epochs"] == 3
        assert len(one["errors"]) == 2
        assert max(one["errors"].values()) < LIMITS[dtype], one


def test_trains_with_few_channels_where_onednn_would_crash():
    """With one thread and AVX2 its own kernel crashes at 4 input channels."""
    train((4,), "float32", 1, "AVX2")


def test_trains_in_bfloat16_with_few_channels_in_each_shortcut():
    check([cut_shortcuts.train(5, torch.bfloat16)], (5,), "bfloat16")


CASES = list(itertools.product(("float32", "bfloat16"), (1, 2), ("AVX2", "")))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("dtype", "threads", "isa"), CASES)
def test_trains_with_few_or_many_channels_in_each_shortcut(dtype, threads, isa):
    # Without matrix units, bfloat16 takes five times as long.
    train((1, 4, 17) if dtype == "float32" else (4,), dtype, threads, isa)
