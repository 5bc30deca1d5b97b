"""Print the table of the kernel benchmarks from their JSON files.

    python -m benchmarks.kernels.tables FILE.json [FILE.json ...]

`of a copy` is the kernel's rate relative to that of torch's copy: the median over interleaved pairs with its 95 %
interval, and the ratio of the two minimum times. Bytes are the least traffic: each element is read once and each result
written once.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pandas as pd


def rows(path: Path) -> list[dict[str, Any]]:
    """Return a row for each case of a file."""
    found = []
    for case in json.loads(path.read_text(encoding="utf-8"))["benchmarks"]:
        info, of_copy = case["extra_info"], case["extra_info"]["of_copy"]
        found.append(
            {
                "kernel": case["name"].partition("[")[0].removeprefix("test_"),
                **{name: info[name] for name in ("shape", "dtype", "group", "mode", "backend")},
                "MB": f"{info['bytes'] / 1e6:.4g}",
                "ms": f"{1e3 * info['seconds']:.4g}",
                "GB/s": f"{info['gb_per_s']:.4g}",
                "of a copy": "{median:.3f} [{low:.3f}, {high:.3f}] {least:.3f}".format(**of_copy),
            }
        )
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE.json", nargs="+", type=Path, help="written by --benchmark-json")
    table = pd.DataFrame([row for path in parser.parse_args().files for row in rows(path)])
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
