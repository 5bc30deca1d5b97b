"""Tests of the search for wrong products: cases, isolation of crashes and hangs, and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.products import search_products
from benchmarks.products.cases import GROUPINGS, all_cases

ROOT = Path(__file__).parents[2]


def some_cases(count=4):
    return all_cases((1,), (2,), ("1",), ("channels-last",), ("float32",), (1,), 1, 0)[0][:count]


class FakeWorker:
    """Replacement of the worker, whose result depends on the input channels of the cases."""

    def __init__(self, bad, alone=True):
        self.bad, self.alone = bad, alone

    def run(self, cases, seconds):
        errors = []
        for case in cases:
            if case.in_channels in self.bad and (self.alone or len(cases) > 1):
                return errors, self.bad[case.in_channels]
            errors.append({"forward": 1e-6})
        return errors, ""


def test_cases_cover_all_channel_counts_and_groups_reproducibly():
    rows = all_cases((1, 3), (1, 2), GROUPINGS, ("contiguous",), ("float32",), (1, 2), 2, 5)
    assert len(rows) == 2 * 2 * len(GROUPINGS) * 2
    assert {case.in_channels for case in rows[0]} == set(range(1, 34))
    assert all(case.in_channels % case.groups == case.out_channels % case.groups == 0 for row in rows for case in row)
    assert rows == all_cases((1, 3), (1, 2), GROUPINGS, ("contiguous",), ("float32",), (1, 2), 2, 5)


def test_the_case_that_crashes_is_found_and_the_others_count_as_right():
    found = search_products.examine(FakeWorker({2: "crashed, signal 11", 3: "hung"}), some_cases())
    assert [text for _, text, _ in found] == ["", "crashed, signal 11", "hung", ""]


def test_a_crash_that_no_case_causes_alone_is_reported_unlike_a_slow_machine():
    found = search_products.examine(FakeWorker({2: "crashed, signal 6"}, alone=False), some_cases())
    assert {text for _, text, _ in found} == {"crashed, signal 6 with others, not alone"}
    found = search_products.examine(FakeWorker({2: "hung"}, alone=False), some_cases())
    assert {text for _, text, _ in found} == {""}


def test_ranges():
    assert search_products.ranges([3, 1, 2, 2, 9, 11, 12]) == "1-3, 9, 11-12"


def test_crashes_and_hangs_of_forked_processes_are_distinguished():
    code = (
        "import os, signal, time\n"
        "from benchmarks.products import worker\n"
        "from test_search_products import some_cases\n"
        "def errors_of(case, suite):\n"
        "    if case.in_channels == 2: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    if case.in_channels == 3: time.sleep(60)\n"
        "    return {'forward': 0.0}\n"
        "worker.errors_of = errors_of\n"
        "cases = some_cases()\n"
        "assert worker.forked(cases, 30, False) == ([{'forward': 0.0}], 'crashed, signal 11')\n"
        "assert worker.forked(cases[2:], 1, False) == ([], 'hung')\n"
        "assert worker.forked(cases[3:], 30, False) == ([{'forward': 0.0}], '')\n"
    )
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=True, timeout=120)


def test_the_program_finds_the_suite_s_products_right_and_writes_what_it_did(tmp_path):
    file = tmp_path / "found.json"
    options = ("--through", "suite", "--kernels", "1", "--strides", "2", "--groups", "1", "--threads", "1")
    options += ("--dtypes", "float32", "--layouts", "channels-last", "--pairs", "1", "--isa", "AVX2")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.products.search_products", *options, "--json", str(file)],
        cwd=ROOT, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "33 of 33 cases, 0 failed" in done.stdout
    written = json.loads(file.read_text())
    assert written["rows"][0]["cases"] == 33
    assert "AVX2" in written["versions"]
    assert written["provenance"]["software"]["onednn"]
