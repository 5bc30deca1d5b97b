"""Reproducible random edits of the files of a suite's folder."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

# Replacements for values, as JSON text.
NASTY = (
    "null", "true", "[]", "{}", "[1, [2]]", '{"a": {"b": null}}', "-1", "0", "0.5", "1e308", "-1e308", "NaN",
    "Infinity", str(2**63), str(10**30), "1" + "0" * 400, "1" + "0" * 5000, '"x"', '""', '"\\ud800"', '"\\u0000<b>|`"',
    json.dumps("a" * 3000), "[" * 30 + "]" * 30, "[" * 900 + "]" * 900, "[" * 5000 + "]" * 5000, '["x", 1]',
)  # fmt: skip
ENDINGS = (".json", ".jsonl", ".csv", ".gz")
CELLS = ("", "x", "nan", "inf", "-1", "1e400", "1e308", "0", "9" * 30, "..", "\0", "a" * 300, '"', "é", "done", "7.5")


def damage(folder: Path, seed: int) -> str:
    """Edit a random file of the folder, in the same way for the same seed. Return a description of the edit."""
    chance = random.Random(seed)
    paths = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.suffix in (".json", ".jsonl", ".csv", ".gz")
    )
    # The table and suite.json are chosen as often as the files of trials, although there is only one of each.
    kind = chance.choice(("results.csv", "suite.json", "trial.json", "trial.json", "epochs.jsonl", "layers.csv"))
    path = chance.choice([path for path in paths if path.name.removesuffix(".gz") == kind] or paths)
    content = path.read_bytes()
    if path.suffix == ".gz" and chance.random() < 0.7:
        content = gzip.decompress(content)
        edited, what = _edit(content, kind, chance)
        path.write_bytes(gzip.compress(edited, mtime=0))
    elif chance.random() < 0.05:
        path.unlink()
        path.mkdir()
        what = "a folder in its place"
    else:
        edited, what = _edit(content, kind, chance)
        path.write_bytes(edited)
    return f"seed {seed}: {path.relative_to(folder)}: {what}"


def _edit(content: bytes, kind: str, chance: random.Random) -> tuple[bytes, str]:
    if chance.random() < 0.25:
        return _bytes(content, chance)
    if kind.endswith(".csv"):
        return _table(content, chance)
    if kind.endswith(".jsonl"):
        lines = content.splitlines()
        place = chance.randrange(len(lines))
        lines[place], what = _json(lines[place], chance)
        return b"\n".join(lines) + b"\n", f"line {place + 1}, {what}"
    return _json(content, chance)


def _bytes(content: bytes, chance: random.Random) -> tuple[bytes, str]:
    place = chance.randrange(len(content))
    edits = {
        "cut off": content[:place],
        "emptied": b"",
        "noise inserted": content[:place] + chance.randbytes(8) + content[place:],
        "a bit flipped": content[:place] + bytes([content[place] ^ (1 << chance.randrange(8))]) + content[place + 1 :],
        "not UTF-8": content[:place] + b"\xff\xfe" + content[place:],
        "a part twice": content[:place] + content[place // 2 :],
        "something else": chance.choice((b"null", b"[]", b'"x"', b"{}", b"\x89PNG\r\n", b",,,\n,,,\n")),
    }
    what = chance.choice(sorted(edits))
    return edits[what], f"{what} at byte {place}"


def _json(content: bytes, chance: random.Random) -> tuple[bytes, str]:
    data = json.loads(content)
    value = chance.choice(NASTY)
    holder, key = _place(data, chance)
    before = holder[key]
    if chance.random() < 0.15:
        del holder[key]
        return json.dumps(data).encode(), f"{key!r} removed"
    if chance.random() < 0.1 and isinstance(holder, dict):
        holder["\ud800" if chance.random() < 0.5 else "new"] = before
        return json.dumps(data).encode(), "a name added"
    holder[key] = "PLACE OF THE VALUE"
    text = json.dumps(data).replace('"PLACE OF THE VALUE"', value)
    return text.encode(), f"{key!r} is {value[:40]}"


def _place(data: Any, chance: random.Random) -> tuple[Any, Any]:
    """Return the container and key of a random value in nested data. Outer values are more likely than inner ones."""
    holder = data
    while True:
        key = chance.choice(sorted(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
        inner = holder[key]
        if not (isinstance(inner, (dict, list)) and inner) or chance.random() < 0.25:
            return holder, key
        holder = inner


def _table(content: bytes, chance: random.Random) -> tuple[bytes, str]:
    rows = list(csv.reader(io.StringIO(content.decode())))
    line, column = chance.randrange(len(rows)), chance.randrange(len(rows[0]))
    edit = chance.randrange(8)
    if edit == 0:
        rows.pop(line)
        what = f"row {line} removed"
    elif edit == 1:
        rows.insert(line, list(rows[line]))
        what = f"row {line} twice"
    elif edit == 2:
        rows = [row[:column] + row[column + 1 :] for row in rows]
        what = f"column {column} removed"
    elif edit == 3:
        rows[line] = rows[line][:column]
        what = f"row {line} cut off"
    else:
        rows[line][column] = chance.choice(CELLS)
        what = f"row {line}, {rows[0][column]!r} is {rows[line][column][:40]!r}"
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode(), what
