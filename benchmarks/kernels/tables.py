"""Write tables and charts of the kernel benchmarks from their JSON files.

    python -m benchmarks.kernels.tables FILE.json [FILE.json ...] [-o FOLDER]

The program writes `kernels.md` and `figures/kernels-*.svg` into FOLDER (default: the folder of the first file), and
prints whether the required rates ("bars") are met. The exit status is 0 even if a bar is missed, and 2 for a file that
was not written by `bench_kernels.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.kernels.alternatives import NOTES
from benchmarks.kernels.bars import BARS, Verdict, verdicts
from benchmarks.kernels.charts import DTYPES, PRUNINGS, charts
from benchmarks.kernels.results import Row, Run, read
from reports import formatting
from reports.content.model import Cell, Column, Table
from reports.figures.figure import Figure
from reports.render.markdown import code, escape, table
from suite.cli.parser import Parser
from suite.errors import UsageError

NAME = "kernels.md"
_INTERVAL = "Median of interleaved pairs with its 95 % bootstrap interval; then the ratio of the two minimum times."
_BYTES = "Minimum traffic: each element is read once and each result is written once."


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the files of the command line, and write the tables and charts."""
    parser = Parser(prog="python -m benchmarks.kernels.tables", description=__doc__)
    parser.add_argument("files", metavar="FILE.json", nargs="+", help="file written by --benchmark-json or --json")
    parser.add_argument("-o", "--out", metavar="FOLDER", help="output folder (default: the folder of the first file)")
    try:
        chosen = parser.read(list(sys.argv[1:] if arguments is None else arguments))
        paths = [Path(name) for name in chosen.files]
        folder = Path(chosen.out) if chosen.out else paths[0].parent
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"-o {folder} is a file, not a folder")
        runs = read(paths)
    except UsageError as error:
        print("kernel_tables: error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    # Create all content before any file is written.
    figures = charts(runs)
    text = markdown(runs, figures)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for figure in figures:
        (folder / "figures" / f"kernels-{figure.name}.svg").write_text(figure.standalone, encoding="utf-8")
    (folder / NAME).write_text(text, encoding="utf-8")
    print("\n".join(bar_lines(runs)))
    print(f"{folder / NAME}")
    return 0


def markdown(runs: Sequence[Run], figures: Sequence[Figure]) -> str:
    """Return the page as Markdown."""
    rows = [row for run in runs for row in run.rows]
    parts = ["# Pruning kernels", *_facts(runs), "## Bars", table(_bar_table(runs))]
    if figures:
        parts.append("## Charts")
    for figure in figures:
        parts.append(f"![{escape(figure.alt)}](figures/kernels-{figure.name}.svg)")
        parts.append(escape(f"{figure.title}. {figure.caption}"))
    for n, m in sorted({(row.n, row.m) for row in rows}, key=lambda group: (group[1], group[0])):
        parts += [f"## {n}:{m}", table(_case_table(runs, n, m))]
    parts += ["## Copies", table(_copy_table(rows))]
    used = dict.fromkeys(item.name for row in rows for item in row.instead)
    if used:
        parts.append("## Alternatives to the kernel")
        parts.append("\n".join(f"- {escape(name)}: {escape(NOTES.get(name, ''))}" for name in used))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def bar_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Yield one line per bar that applies to at least one row."""
    for bar, found in _by_bar(runs):
        held = sum(verdict.holds for _, verdict in found)
        row, worst = min(found, key=lambda pair: pair[1].value)
        word = "holds " if held == len(found) else "MISSED"
        yield f"{word}  {bar}: {held} of {len(found)}; minimum {_value(worst)}, {_named(row)}"


def _facts(runs: Sequence[Run]) -> Iterator[str]:
    first = runs[0].provenance
    hardware, software = first.get("hardware", {}), first.get("software", {})
    device = hardware.get("gpu") or f"{hardware.get('cpu', '')}, {hardware.get('threads', '?')} threads"
    driver = f", driver {hardware['driver']}" if hardware.get("driver") else ""
    versions = ", ".join(
        f"{name} {software[name]}"
        for name in ("torch", "cuda", "cupy-cuda12x", "cupy-cuda13x", "triton")
        if software.get(name)
    )
    yield escape(f"{device}{driver}; {versions}; hardware {first['hardware_id']}.")
    for run in runs:
        found = run.provenance
        git = found.get("git", {})
        changes = " with uncommitted changes" if git.get("dirty") else ""
        cores = found.get("busy_cores")
        busy = f", {cores} cores busy at the start" if cores is not None else ""
        commit = f"{str(git.get('commit', 'unknown'))[:12]}{changes}"
        line = f"{found.get('time_utc', '')}: {len(run.rows)} cases, {run.rounds} rounds, commit {commit}{busy}."
        yield escape(line) + (f" {code(str(found['command_line']))}" if found.get("command_line") else "")
    cache = f"Last-level cache: {formatting.binary_bytes(runs[0].cache_bytes)} ({runs[0].cache_known_from})."
    yield escape(cache)
    yield escape(
        "Times, GB/s, fractions and ratios are measured; bytes are counted. Every case was checked against the "
        "reference before it was timed."
    )
    reports = dict.fromkeys(run.backend for run in runs)
    yield from map(escape, reports)


def _bar_table(runs: Sequence[Run]) -> Table:
    columns = (
        Column("Bar", numeric=False),
        Column("Required"),
        Column("Rows that meet it"),
        Column("Minimum", kind="measured"),
        Column("Case", numeric=False),
        Column("", numeric=False),
    )
    body = []
    for name, found in _by_bar(runs):
        held = sum(verdict.holds for _, verdict in found)
        row, worst = min(found, key=lambda pair: pair[1].value)
        body.append(
            (
                Cell(name),
                Cell(_number(worst.bar.least)),
                Cell(f"{held} of {len(found)}"),
                Cell(_value(worst)),
                Cell(_named(row)),
                Cell("holds" if held == len(found) else "MISSED"),
            )
        )
    absent = [bar.name for bar in BARS if bar.name not in {name for name, _ in _by_bar(runs)}]
    body += [(Cell(name), Cell("–"), Cell("0 of 0"), Cell("–"), Cell("no case"), Cell("–")) for name in absent]
    return Table("bars", "", columns, tuple(body))


def _by_bar(runs: Sequence[Run]) -> list[tuple[str, list[tuple[Row, Verdict]]]]:
    found: dict[str, list[tuple[Row, Verdict]]] = {bar.name: [] for bar in BARS}
    for run in runs:
        for row in run.rows:
            for verdict in verdicts(row, run):
                found[verdict.bar.name].append((row, verdict))
    return [(name, rows) for name, rows in found.items() if rows]


def _case_table(runs: Sequence[Run], n: int, m: int) -> Table:
    pairs = [(row, run) for run in runs for row in run.rows if (row.n, row.m) == (n, m)]
    pairs.sort(key=lambda pair: _order(pair[0]))
    others = list(dict.fromkeys(item.name for row, _ in pairs for item in row.instead))
    columns = (
        Column("Kernel", numeric=False),
        Column("Type", numeric=False),
        Column("Pruning", numeric=False),
        Column("Gradient", numeric=False),
        Column("Layer", numeric=False),
        Column("Bytes", "MB", "counted", _BYTES),
        Column("Time", "ms", "measured"),
        Column("Rate", "GB/s", "measured"),
        Column("Fraction of a copy", "", "measured", _INTERVAL),
        Column("By minimum times", "", "measured", _INTERVAL),
        *(Column(f"Time of {name}", "× the kernel's", "measured", _INTERVAL) for name in others),
        Column("Bar", numeric=False),
    )
    body = tuple(_case_row(row, run, others) for row, run in pairs)
    return Table(f"cases-{n}-{m}", "", columns, body)


def _order(row: Row) -> tuple[object, ...]:
    dtype = DTYPES.index(row.dtype) if row.dtype in DTYPES else len(DTYPES)
    pruning = PRUNINGS.index(row.pruning) if row.pruning in PRUNINGS else len(PRUNINGS)
    return row.kernel != "prune_nm", dtype, row.dtype, pruning, row.pruning, -row.tensor_bytes, row.shape


def _case_row(row: Row, run: Run, others: Sequence[str]) -> tuple[Cell, ...]:
    interval = f"{row.fraction.median:.3f} [{row.fraction.low:.3f}, {row.fraction.high:.3f}]"
    backend = "" if row.backend != "reference" else "Computed by plain torch: no compiled kernel supports this case."
    said = [
        f"{'holds' if verdict.holds else 'MISSED'} ≥ {_number(verdict.bar.least)}" for verdict in verdicts(row, run)
    ]
    return (
        Cell(row.kernel, note=backend, code=True),
        Cell(row.dtype),
        Cell(row.pruning),
        Cell(row.size),
        Cell(row.layer),
        Cell(f"{row.bytes / 1e6:.4g}"),
        Cell(f"{1e3 * row.seconds:.4g}"),
        Cell(f"{row.gb_per_s:.4g}"),
        Cell(interval),
        Cell(f"{row.fraction.least:.3f}"),
        *(_alternative(row, name) for name in others),
        Cell(", ".join(said) or "–"),
    )


def _alternative(row: Row, name: str) -> Cell:
    for item in row.instead:
        if item.name == name:
            ratio = item.times_as_long
            if ratio is None:
                return Cell("failed", note=item.failed)
            note = "" if item.same_values else "Its values differ from the reference; see below."
            return Cell(f"{ratio.median:.3g} [{ratio.low:.3g}, {ratio.high:.3g}], {ratio.least:.3g}", note=note)
    return Cell(formatting.DASH)


def _copy_table(rows: Sequence[Row]) -> Table:
    """Return the rates of all ways to copy each tensor."""
    tensors = {(row.shape, row.dtype): row for row in rows}
    ways = list(dict.fromkeys(name for row in rows for name in row.copies_gb_per_s))
    fastest = "The fastest was timed in alternation with the kernels."
    columns = (
        Column("Gradient", numeric=False),
        Column("Type", numeric=False),
        Column("Size", "MB", "counted"),
        *(Column(name, "GB/s", "measured", "Median; read and written bytes are both counted.") for name in ways),
        Column("Fastest", numeric=False, note=fastest),
    )
    ordered = sorted(tensors.values(), key=lambda row: (-row.tensor_bytes, row.shape, row.dtype))
    body = tuple(
        (
            Cell(row.size),
            Cell(row.dtype),
            Cell(f"{row.tensor_bytes / 1e6:.4g}"),
            *(
                Cell(f"{row.copies_gb_per_s[name]:.4g}" if name in row.copies_gb_per_s else formatting.DASH)
                for name in ways
            ),
            Cell(row.copy),
        )
        for row in ordered
    )
    return Table("copies", "", columns, body)


def _named(row: Row) -> str:
    return f"{row.dtype} {row.n}:{row.m} {row.pruning}, {row.size}"


def _value(verdict: Verdict) -> str:
    # Enough decimals that a missed bar is not rounded to a met one.
    decimals = 3 if verdict.bar.least < 1 else 1
    return f"{verdict.value:.{decimals}f}"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 1 else f"{value:.0f}"


if __name__ == "__main__":
    sys.exit(main())
