"""Search for wrong products of torch's convolutions on this CPU, in processes that may crash or hang.

    python -m benchmarks.products.search_products [--through suite] [--isa AVX2] [--guard] [--minutes 20] [--json FILE]

The output, data gradient, weight gradient and bias gradient of each case are compared with float64. The cases cover
kernels 1, 3 and 5; strides 1 to 3; 1 to 33 input and output channels; groups; both memory layouts; float32 and
bfloat16; 1 and 2 threads. Each forked process computes several cases; if one crashes, hangs or is wrong, its cases run
again one by one. The table has one row per kind of convolution, with the input channels of the failed cases. The file
has every failed case and is rewritten during the search.

Writes past the end of an allocation often have no visible effect. With `--guard` (Linux with a C compiler), each large
allocation ends at an inaccessible page, so that such a write ends the process at once.

`--isa AVX2` limits the instructions that oneDNN uses (its ONEDNN_MAX_CPU_ISA).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.products.cases import (
    DTYPES,
    GROUPINGS,
    KERNELS,
    LAYOUTS,
    LIMITS,
    SIDES,
    STRIDES,
    THREADS,
    Case,
    all_cases,
)
from benchmarks.products.worker import Worker

TOGETHER = 33  # number of cases per process
SECONDS_TOGETHER, SECONDS_ALONE = 120.0, 30.0
ALONE = 3  # repetitions of each case alone, if a process failed but none of its cases fails alone
SAVE_EVERY = 5.0  # seconds


def outcome(case: Case, errors: dict[str, float]) -> str:
    """Return the wrong products with their errors; empty if all are right."""
    wrong = {name: error for name, error in errors.items() if not error <= LIMITS[case.dtype]}
    return ", ".join(f"{name} wrong by {error:.2g}" for name, error in wrong.items())


def examine(worker: Worker, cases: Sequence[Case]) -> list[tuple[Case, str, dict[str, float]]]:
    """Compute cases; return each with its outcome (empty if it is right) and its errors."""
    errors, ended = worker.run(cases, SECONDS_TOGETHER)
    if not ended:
        found = [(case, outcome(case, error), error) for case, error in zip(cases, errors, strict=True)]
        if not any(text for _, text, _ in found):
            return found
    for times in (1, ALONE):
        alone = [_alone(worker, case, times) for case in cases]
        if any(text for _, text, _ in alone):
            return alone
    if ended == "hung":  # every case finished alone, so the machine was busy
        return alone
    together = ended or "wrong"
    return [(case, f"{together} with others, not alone", error) for case, _, error in alone]


def _alone(worker: Worker, case: Case, times: int) -> tuple[Case, str, dict[str, float]]:
    errors: list[dict[str, float]] = []
    for _ in range(times):
        errors, ended = worker.run([case], SECONDS_ALONE)
        text = ended or outcome(case, errors[0])
        if text:
            return case, text, errors[0] if errors else {}
    return case, "", errors[0]


def ranges(numbers: Sequence[int]) -> str:
    """Return integers as ranges, for example `1-7, 9`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def table(rows: dict[tuple[Any, ...], dict[str, Any]]) -> str:
    """Return one line per row; rows of a kind without failures in any layout and thread count share one line."""
    kinds: dict[tuple[Any, ...], dict[tuple[Any, ...], dict[str, Any]]] = {}
    for row, found in rows.items():
        kernel, stride, grouping, layout, dtype, threads = row
        kinds.setdefault((kernel, stride, grouping, dtype), {})[layout, threads] = found
    lines = [
        f"{'kernel':6} {'stride':6} {'groups':6} {'dtype':8} {'layout':24} {'threads':7} {'cases':>5} {'right':>5}  "
        f"{'largest error':>13}  failed"
    ]
    for kind, members in kinds.items():
        if not any(found["cases"] for found in members.values()):
            continue
        parts = [[*members.items()]]
        if any(found["failed"] for found in members.values()):
            parts = [[item] for item in members.items()]
        for part in parts:
            lines.append(" ".join(f"{value!s:{width}}" for value, width in zip(kind, (6, 6, 6, 8), strict=True)))
            lines[-1] += " " + _line(part)
    return "\n".join(lines)


def _line(members: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> str:
    """Return the rest of a line after kernel, stride, groups and type, summed over layouts and thread counts."""
    failed = [one for _, found in members for one in found["failed"]]
    layouts = " ".join(dict.fromkeys(layout for (layout, _), _ in members))
    threads = " ".join(dict.fromkeys(str(count) for (_, count), _ in members))
    cases = sum(found["cases"] for _, found in members)
    largest = max(found["largest_error"] for _, found in members)
    text = "-"
    if failed:
        counts = Counter(one["outcome"].partition(" by ")[0] for one in failed)
        text = "; ".join(f"{outcome}: {count}" for outcome, count in counts.most_common())
        text += f" (in {ranges([one['in_channels'] for one in failed])}; "
        text += f"out {ranges([one['out_channels'] for one in failed])})"
    return f"{layouts:24} {threads:7} {cases:>5} {cases - len(failed):>5}  {largest:13.2g}  {text}"


def guard_library(folder: Path) -> Path:
    """Compile `guard_pages.c` into a folder.

    Raises:
        SystemExit: If no C compiler is found or it fails; the message is one line.
    """
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        raise SystemExit(f"search_products: error: --guard needs a C compiler, and {compiler[0]} is not found")
    library, source = folder / "guard_pages.so", Path(__file__).with_name("guard_pages.c")
    done = subprocess.run(
        [*compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"search_products: error: {compiler[0]}: {done.stderr.strip().splitlines()[-1]}")
    return library


def search(options: argparse.Namespace) -> dict[str, Any]:
    """Examine all cases, or as many as the minutes allow; return the results by row and how the search ended."""
    rows = all_cases(
        options.kernels, options.strides, options.groups, options.layouts, options.dtypes, options.threads,
        options.pairs, options.seed, tuple(options.sides),
    )  # fmt: skip
    counts: dict[tuple[Any, ...], dict[str, Any]] = {}
    until = time.monotonic() + 60 * options.minutes
    began = saved = time.monotonic()
    ended = "all cases were examined"
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *_python_path()])
        # Waiting threads must not occupy a core; otherwise cases seem to hang on a busy machine.
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        if options.isa:
            environment["ONEDNN_MAX_CPU_ISA"] = options.isa
        if options.guard:
            environment["LD_PRELOAD"] = str(guard_library(Path(folder)))
        facts = {"command_line": shlex.join(sys.argv), **_facts(environment)}
        worker = Worker(environment, options.through == "suite")

        def found(state: str) -> dict[str, Any]:
            return {
                **facts,
                "options": {key: value for key, value in vars(options).items() if key != "json"},
                "limits": LIMITS,
                "state": state,
                "seconds": round(time.monotonic() - began, 1),
                "rows": [
                    {**dict(zip(("kernel", "stride", "groups", "layout", "dtype", "threads"), row, strict=True)), **one}
                    for row, one in counts.items()
                ],
            }

        counts |= {cases[0].row: {"cases": 0, "largest_error": 0.0, "failed": []} for cases in rows}
        parts = [cases[first : first + TOGETHER] for cases in rows for first in range(0, len(cases), TOGETHER)]
        random.Random(options.seed).shuffle(parts)  # a search that is stopped early covers some cases of every kind
        for part in parts:
            if time.monotonic() > until:
                ended = f"stopped after {options.minutes:g} minutes"
                break
            for case, text, errors in examine(worker, part):
                row = counts[case.row]
                row["cases"] += 1
                if text:
                    row["failed"].append({**asdict(case), "outcome": text})
                else:
                    row["largest_error"] = max(row["largest_error"], *errors.values())
            if options.json and time.monotonic() - saved > SAVE_EVERY:
                _save(options.json, found("not finished"))
                saved = time.monotonic()
        worker.close()
    result = found(ended)
    if options.json:
        _save(options.json, result)
    print(f"{facts['versions']}; through {options.through}{'; guard pages' if options.guard else ''}")
    print(table(counts))
    failed = sum(len(row["failed"]) for row in counts.values())
    cases_run, of = sum(row["cases"] for row in counts.values()), sum(map(len, rows))
    print(f"{cases_run} of {of} cases, {failed} failed; {ended}; {result['seconds']:.0f} s")
    return result


def _python_path() -> list[str]:
    return [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []


def _facts(environment: dict[str, str]) -> dict[str, Any]:
    """Return versions, instruction set and machine as seen by a process with this environment."""
    code = (
        "import json, torch; from suite.runs.provenance import collect; facts = collect('cpu'); s = facts['software'];"
        "print(json.dumps({'versions': f\"torch {s['torch']}, oneDNN {s['onednn']}, {s['onednn_isa']}\","
        "'provenance': {k: facts[k] for k in ('hardware', 'software', 'settings', 'git', 'time_utc')}}))"
    )
    plain = {name: value for name, value in environment.items() if name != "LD_PRELOAD"}
    done = subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=True)
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def _save(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    other = path.with_name(f".{path.name}.part")
    other.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    other.replace(path)


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.products.search_products", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--through",
        choices=("torch", "suite"),
        default="torch",
        help="search layers of torch or of the suite (%(default)s)",
    )
    parser.add_argument(
        "--isa", default="", help="value of ONEDNN_MAX_CPU_ISA, for example AVX2 or AVX512_CORE (default: not set)"
    )
    parser.add_argument(
        "--guard", action="store_true", help="end each large allocation at an inaccessible page (default: off)"
    )
    parser.add_argument(
        "--pairs",
        type=int,
        default=3,
        help="number of output channel counts for each input channel count; 0 for all (%(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the channel counts and of the operands (%(default)s)"
    )
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="start no new case after this many minutes (%(default)s)"
    )
    parser.add_argument("--json", type=Path, help="file for the results (default: none)")
    parser.add_argument(
        "--sides", type=int, nargs=2, default=SIDES, help="smallest and largest side of the images (%(default)s)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="only kernels 1 and 3, strides 1 and 2, --pairs 1 (default: off)"
    )
    for name, known in (
        *(("kernels", KERNELS), ("strides", STRIDES), ("groups", GROUPINGS)),
        *(("layouts", LAYOUTS), ("dtypes", DTYPES), ("threads", THREADS)),
    ):
        kind = type(known[0])
        parser.add_argument(
            f"--{name}", type=kind, nargs="+", choices=known, default=known, help="search only these (%(default)s)"
        )
    options = parser.parse_args(arguments)
    if options.quick:
        options.pairs = 1
        options.kernels = tuple(kernel for kernel in options.kernels if kernel < 5)
        options.strides = tuple(stride for stride in options.strides if stride < 3)
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the search; return 0 if no case failed, otherwise 1."""
    options = read_options(arguments)
    return 1 if any(row["failed"] for row in search(options)["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
