"""Compilation of the CPU kernels before they are needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from kernels.compressed import cpu as compressed
from kernels.cpu.build import has_to_compile
from kernels.prune import cpu as prune
from kernels.sparse_conv import cpu as sparse_conv

log = logging.getLogger("pdt.kernels")

# How each source is compiled, opened and compared with its definition.
OPENERS: dict[str, Callable[[], object]] = {
    "compressed_gradients": compressed.library,
    "prune_nm": prune.load,
    "sparse_conv": sparse_conv.library,
}


def compile_kernels(names: Collection[str]) -> None:
    """Compile sources that are not in the cache, all at the same time, and say so before.

    A source that cannot be compiled is logged; plain torch takes its place.

    Args:
        names: Keys of `OPENERS`.
    """
    new = [name for name in sorted(names) if has_to_compile(name)]
    if not new:
        return
    log.info("compiling the CPU kernels %s, once for this machine: about 15 s", ", ".join(new))
    with ThreadPoolExecutor(len(new)) as threads:
        list(threads.map(lambda name: OPENERS[name](), new))
