"""The message that refuses a folder with bad files, and names the files that are found soon after the first."""

from __future__ import annotations

import time
from collections.abc import Iterable

from suite.errors import UsageError
from tasks.images.decoding import BadImage, shown
from tasks.sources.image_tree import TreeFile

MOST = 20  # number of bad files that are named
SECONDS = 30.0  # time for further files; all files of a large folder may take an hour


def refusal(first: BadImage, further: Iterable[tuple[TreeFile, object]], setting: str) -> UsageError:
    """Return the error for a folder with a bad file, after a look at the files behind it.

    Args:
        first: The fault of the first bad file.
        further: The files behind it, each with its result: a `BadImage`, or anything else for an image. The look ends
            after `MOST` bad files or `SECONDS`.
        setting: Options with which bad files are left out.
    """
    began, seen, complete = time.monotonic(), 0, True
    others: list[str] = []
    for file, result in further:
        seen += 1
        if isinstance(result, BadImage):
            others.append(shown(file.path))
        if len(others) + 1 == MOST or time.monotonic() - began >= SECONDS:
            complete = False
            break
    behind = "all files behind it" if complete else f"the next {seen:,} {'file' if seen == 1 else 'files'}"
    if not others:
        text, remedy = f"{first}; {behind} can be read", "remove the file"
    else:
        count = f"{len(others)} {'other is' if len(others) == 1 else 'others are'}"
        text, remedy = f"{first}; {count} bad in {behind}: {', '.join(others)}", "remove the files"
    return UsageError(f"{text}; {remedy}, or leave out such files with {setting}")
