"""Seeded random edits of files, as made by disks, programs and people."""

import json

JSON_VALUES = (
    *(None, True, -1, 0, 7.0, 2**63, 10**400, 1e308, -0.5, "", "x", "\ud800", "\0", [], {}, [[]], {"x": {}}),
    *([1, 2], "done", "running", "../../x", "é" * 300),
)


def edit(content, random, other=b""):
    """Return the content of a file after one random edit, and the name of the edit.

    Args:
        content: Bytes of the file.
        random: A `random.Random`.
        other: Bytes of another file of the same kind, for example of another trial.
    """
    if not content:
        return other, "other"
    kinds = ["empty", "truncate", "flip", "replace", "insert", "delete", "zeros", "noise", "append", "other"]
    try:
        document = json.loads(content)
    except (ValueError, UnicodeDecodeError):
        document = None
    if isinstance(document, dict):
        kinds += ["value", "drop", "value", "drop", "value", "drop", "nest", "digits"]
    kind = random.choice(kinds)
    at = random.randrange(len(content))
    length = random.choice((1, 2, 16, 512))
    noise = random.randbytes(length)
    edited = {
        "empty": lambda: b"",
        "truncate": lambda: content[:at],
        "flip": lambda: content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :],
        "replace": lambda: content[:at] + noise + content[at + length :],
        "insert": lambda: content[:at] + noise + content[at:],
        "delete": lambda: content[:at] + content[at + length :],
        "zeros": lambda: content[:at] + bytes(len(content) - at),  # as some file systems leave it after a power failure
        "noise": lambda: random.randbytes(len(content)),
        "append": lambda: content + noise,
        "other": lambda: other,
        "nest": lambda: b"[" * 100_000 + b"]" * 100_000,
        "digits": lambda: content.replace(b": ", b": " + b"9" * 5000, 1),
        "value": lambda: _changed(document, random, drop=False),
        "drop": lambda: _changed(document, random, drop=True),
    }[kind]()
    return edited, kind


def _changed(document, random, drop):
    """Return the document with one value, at any depth, replaced or removed."""
    places = []

    def walk(node):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            places.append((node, key))
            if isinstance(value, (dict, list)):
                walk(value)

    walk(document)
    if places:
        node, key = random.choice(places)
        if drop:
            del node[key]
        else:
            node[key] = random.choice(JSON_VALUES)
    return json.dumps(document).encode()
