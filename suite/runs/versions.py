"""What of a version decides whether times may be compared."""

from __future__ import annotations

import re


def minor_version(version: str) -> str:
    """`2.15.0+cu132` as `2.15`: between such releases the speed of an operation may change. Empty stays empty."""
    found = re.match(r"[0-9]+\.[0-9]+", version)
    return found[0] if found else version
