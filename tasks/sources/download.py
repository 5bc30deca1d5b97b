"""Download of a published file from the first of several hosts that delivers it unaltered."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import logging
import urllib.parse
import urllib.request
from pathlib import Path
from typing import IO

from suite import files
from tasks.sources.progress import progress

logger = logging.getLogger(__name__)

STALL_SECONDS = 20.0  # a connection or transfer without data for this long has failed
CHUNK_BYTES = 1 << 18


class DownloadFailed(Exception):
    """No host delivered the file. The message has the reason of each host."""


def fetch(urls: tuple[str, ...], md5: str, destination: Path) -> None:
    """Download the file at one of `urls` to `destination`.

    The hosts are tried in order. The file has a temporary name until it is complete and verified. A failed download
    removes it.

    Args:
        urls: Addresses of the same file.
        md5: MD5 of the file, in hex. Other files are refused.
        destination: Path of the file. Its folder is created if necessary.

    Raises:
        DownloadFailed: No address delivers the file. Nothing is left behind.
        OSError: The folder is not writable.
    """
    folder_is_new = not destination.parent.exists()
    destination.parent.mkdir(parents=True, exist_ok=True)
    files.remove_abandoned(destination.parent, destination.name)
    reasons: list[str] = []
    for url in urls:
        try:
            with files.replacing(destination) as file:
                return _transfer(url, md5, file)
        except DownloadFailed as error:
            reasons.append(f"{urllib.parse.urlsplit(url).hostname or url}: {error}")
            logger.warning("%s", reasons[-1])
    if folder_is_new:
        # Another process may have written a file into the folder in the meantime.
        with contextlib.suppress(OSError):
            destination.parent.rmdir()
    raise DownloadFailed("; ".join(reasons))


def _transfer(url: str, md5: str, file: IO[bytes]) -> None:
    """Write the content of `url` to `file`, and verify its MD5."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urllib.request.urlopen(url, timeout=STALL_SECONDS) as response:
            length = response.headers.get("Content-Length")
            with progress(f"fetching {url}", int(length) if length else None) as advance:
                # read1 returns the data that has arrived. read would wait for a whole chunk.
                while chunk := response.read1(CHUNK_BYTES):
                    file.write(chunk)
                    digest.update(chunk)
                    advance(len(chunk))
    except (OSError, http.client.HTTPException) as error:
        raise DownloadFailed(getattr(error, "reason", None) or error) from error
    if digest.hexdigest() != md5:
        raise DownloadFailed(f"sent another file (MD5 {digest.hexdigest()}, not {md5})")
