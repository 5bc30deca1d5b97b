"""Progress of a long preparation: a bar on a terminal, otherwise a line at the start and one at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def progress(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show the progress of a piece of work on stderr.

    Args:
        description: Description of the work: "decoding 60,000 images of /data/cifar10".
        total: Number of parts; `None` if it is unknown.

    Yields:
        A function that is called with the number of parts completed since its last call, from any thread.
    """
    if sys.stderr.isatty():
        with Progress(console=Console(stderr=True), transient=True) as bars:
            bar = bars.add_task(description, total=total)
            yield lambda parts: bars.advance(bar, parts)
        return
    print(f"{description} ...", file=sys.stderr, flush=True)
    began = time.perf_counter()
    yield lambda parts: None
    print(f"{description}: done in {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
