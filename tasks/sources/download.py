"""Download of a published file from the first of several hosts that delivers it unaltered."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import logging
import queue
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import IO, Any

from suite import files
from tasks.sources.progress import progress

logger = logging.getLogger(__name__)

# With three hosts, all attempts to connect take at most about 20 s together.
CONNECT_SECONDS = 6.0
# A transfer without data for this long has failed.
STALL_SECONDS = 20.0
# A slower host is skipped if there is another one. The speed is measured over the first seconds.
SLOW_BYTES_PER_SECOND = 300_000
JUDGED_AFTER_SECONDS = 15.0
CHUNK_BYTES = 1 << 18


class DownloadFailed(Exception):
    """No host delivered the file. The message has the reason of each host."""


class _TooSlow(Exception):
    pass


def fetch(urls: tuple[str, ...], md5: str, destination: Path) -> None:
    """Download the file at one of `urls` to `destination`.

    The hosts are tried in order. A very slow host is skipped, and used if no other host delivers the file. The file has
    a temporary name until it is complete and verified. A failed download removes it.

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
    slow: list[str] = []
    for url in urls:
        try:
            return _fetch_from(url, md5, destination, may_be_slow=False)
        except _TooSlow:
            slow.append(url)
            reasons.append(f"{_host(url)}: very slow")
        except DownloadFailed as error:
            reasons.append(str(error))
        logger.warning("%s", reasons[-1])
    for url in slow:
        try:
            return _fetch_from(url, md5, destination, may_be_slow=True)
        except DownloadFailed as error:
            reasons.append(str(error))
            logger.warning("%s", reasons[-1])
    if folder_is_new:
        # Another process may have written a file into the folder in the meantime.
        with contextlib.suppress(OSError):
            destination.parent.rmdir()
    raise DownloadFailed("; ".join(reasons))


def _fetch_from(url: str, md5: str, destination: Path, *, may_be_slow: bool) -> None:
    with files.replacing(destination) as file:
        try:
            digest = _transfer(url, file, may_be_slow)
        except (OSError, http.client.HTTPException) as error:
            raise DownloadFailed(f"{_host(url)}: {getattr(error, 'reason', None) or error}") from error
        if digest != md5:
            raise DownloadFailed(f"{_host(url)}: sent another file (MD5 {digest}, not {md5})")


def _transfer(url: str, file: IO[bytes], may_be_slow: bool) -> str:
    """Write the content of `url` to `file`, and return its MD5."""
    digest = hashlib.md5(usedforsecurity=False)
    with _connected(url) as response:
        length = response.headers.get("Content-Length")
        with progress(f"fetching {url}", int(length) if length else None) as advance:
            began, received = time.monotonic(), 0
            # read1 returns the data that has arrived. read would wait for a whole chunk.
            while chunk := response.read1(CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                advance(len(chunk))
                received += len(chunk)
                seconds = time.monotonic() - began
                if not may_be_slow and seconds > JUDGED_AFTER_SECONDS and received / seconds < SLOW_BYTES_PER_SECOND:
                    raise _TooSlow
    return digest.hexdigest()


def _connected(url: str) -> Any:
    """Open `url` in a thread, because the lookup of a host's name has no timeout."""
    outcome: queue.Queue[Any] = queue.Queue()

    def connect() -> None:
        try:
            outcome.put(urllib.request.urlopen(url, timeout=STALL_SECONDS))
        except Exception as error:  # the caller's thread raises it
            outcome.put(error)

    threading.Thread(target=connect, daemon=True).start()
    try:
        answer = outcome.get(timeout=CONNECT_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"no answer within {CONNECT_SECONDS:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _host(url: str) -> str:
    return urllib.parse.urlsplit(url).hostname or url
