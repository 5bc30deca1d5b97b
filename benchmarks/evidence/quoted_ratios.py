"""Check the ratios that the documentation quotes against the last measurements; with `--write`, correct them.

    python -m benchmarks.evidence.quoted_ratios [--write] [FILE]

A ratio is quoted by its name in `bench_step.json`, its median and its 95 % interval, for example `sdgp 2:4 rescaled /
dense` 1.052 [1.045, 1.060]; in a table, the figure may be in the next cell. Other figures in cells of tables are
ratios of reports and are not checked here. A name without an execution means eager. Names of `bench_sdgp` are looked
up in its own files. The number of "interleaved pairs" is that of `bench_step.json`. The exit status is 0 if all
quotes are as measured (or were corrected), 1 if some are not, and 2 for a name that the file does not have.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "results" / "cpu-zen4-2cores" / "bench_step.json"
OF_SDGP = [ROOT / "results" / "cpu-emr-2cores" / name for name in ("bench_sdgp.json", "bench_sdgp_large.json")]
TEXTS = ("README.md", "docs/methods/dense.md", "docs/methods/sdgp.md", "docs/methods/prunetrain.md")
FIGURE = r"\d+\.\d+\s+\[\d+\.\d+,\s+\d+\.\d+\]"
QUOTED = re.compile(rf"(?:`(?P<name>[^`]+)`\s+(?:\|\s+)?)?(?P<figure>{FIGURE})")
PAIRS = re.compile(r"\d+(?=\s+interleaved\s+pairs)")


def corrected(text: str, measured: dict) -> str:
    """Return the text with every quoted ratio as measured; line breaks are not changed.

    Args:
        measured: Content of a `bench_step.json`.

    Raises:
        ValueError: If a ratio has no name, or a name that was not measured.
    """
    ratios = {name.removeprefix("eager: "): ratio for name, ratio in measured["ratios"].items()}

    def as_measured(found: re.Match[str]) -> str:
        name = found["name"] and " ".join(found["name"].split())
        if name is None and text[: found.start()].endswith("| "):
            return found[0]  # a cell of a table of results, whose numbers are those of a report
        if name is None:
            raise ValueError(f"{found['figure']} is quoted without the name of a measurement")
        if name not in ratios:
            raise ValueError(f"'{name}' is quoted and was not measured; known: {', '.join(ratios)}")
        numbers = iter(f"{ratios[name][key]:.3f}" for key in ("median", "low", "high"))
        figure = re.sub(r"\d+\.\d+", lambda _: next(numbers), found["figure"])
        return found[0].removesuffix(found["figure"]) + figure

    return PAIRS.sub(str(measured["pairs"]), QUOTED.sub(as_measured, text))


def main() -> int:
    """Check or correct the texts, and print the files that were or must be changed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "file", nargs="?", type=Path, default=MEASURED, help="file with the measured ratios (%(default)s)"
    )
    parser.add_argument("--write", action="store_true", help="correct the texts")
    chosen = parser.parse_args()
    try:
        measured = json.loads(chosen.file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        parser.error(f"{chosen.file}: {error}")
    if not isinstance(measured, dict) or not {"ratios", "pairs"} <= measured.keys():
        parser.error(f"{chosen.file}: was not written by bench_step.py")
    of_sdgp = [json.loads(path.read_text(encoding="utf-8"))["ratios"] for path in OF_SDGP]
    measured["ratios"] = {name: ratio for ratios in (*of_sdgp, measured["ratios"]) for name, ratio in ratios.items()}
    differs = False
    for name in TEXTS:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        try:
            right = corrected(text, measured)
        except ValueError as error:
            parser.error(f"{name}: {error}")
        if text != right:
            differs = True
            print(f"{name}: {'corrected' if chosen.write else 'quotes other numbers; correct it with --write'}")
            if chosen.write:
                path.write_text(right, encoding="utf-8")
    return 1 if differs and not chosen.write else 0


if __name__ == "__main__":
    sys.exit(main())
