"""Every process that trains or measures flushes subnormal numbers."""

import json
import os
import subprocess
import sys

import pytest
from toy_suite import ROOT

from suite.recipe import FLUSH

METHOD = """
import os
from methods.dense import Dense
from suite.engine.cost.torch_hardware import arithmetic_in_use
from suite.registry import register

@register("method", "asking")
class Asking(Dense):
    '''Dense training that notes the arithmetic of its process.'''

    def after_optimizer_step(self, ctx):
        with open(os.environ["ASKED"], "a") as file:
            file.write(f"{os.getpid()} {arithmetic_in_use()}\\n")
"""
SMALL = ("--task", "digits", "--preset", "smoke", "--model", "resnet9[width=0.0625]", "--epochs", "1")
METHODS = ("--methods", "dense,asking", *SMALL)


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_every_process_that_trains_or_measures_flushes(tmp_path):
    plugin, asked, out = tmp_path / "asking.py", tmp_path / "asked", tmp_path / "out"
    plugin.write_text(METHOD)

    def ask(*words):
        """Run a command, and return the arithmetic of each process that trained a step."""
        asked.write_text("")
        command = [sys.executable, str(ROOT / "run_suite.py"), *map(str, words), "--plugin", str(plugin)]
        variables = {**os.environ, "ASKED": str(asked), "OMP_NUM_THREADS": "2"}
        subprocess.run(command, cwd=tmp_path, env=variables, check=True, timeout=500)
        return dict(line.split() for line in asked.read_text().splitlines())

    assert list(ask(*METHODS, "--out", out).values()) == [FLUSH]
    (record,) = (json.loads(path.read_text()) for path in out.glob("trials/asking-*/trial.json"))
    assert record["spec"]["arithmetic"] == record["provenance"]["settings"]["arithmetic"] == FLUSH
    for words in (
        ("time", out, "--busy", "--pairs", "10"),
        ("profile", out, "--busy", "--rounds", "6"),
        ("check", "asking"),
        ("plan", *METHODS),
    ):
        assert {*ask(*words).values()} == {FLUSH}, words
