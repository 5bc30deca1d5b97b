"""Packs a folder of results into one archive, which is whole at every moment.

    python -m benchmarks.evidence.pack FOLDER ARCHIVE.tar.gz

Networks are left out, and so are the largest files where the archive would grow beyond what can be brought back from
a rented machine; LEFT_OUT.txt in the archive names them. Several processes may pack the same folder: one after the
other, so that a later archive never lacks what an earlier one had.
"""

from __future__ import annotations

import fcntl
import io
import os
import sys
import tarfile
from pathlib import Path

LIMIT_BYTES = 15 * 2**20  # of the 16 MiB that one file may have
LEFT_OUT = "LEFT_OUT.txt"
NEVER = (".pt", ".part")  # nor names that begin with a dot


def pack(folder: Path, archive: Path, limit: int = LIMIT_BYTES) -> list[str]:
    """Packs what is in the folder now.

    Returns:
        The names that were left out for their size.

    Raises:
        OSError: the archive cannot be written; the one before stays.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    made = archive.with_name(f".{archive.name}.part")
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        files = _contents(folder)
        left_out: list[str] = []
        while True:
            if left_out:
                files[LEFT_OUT] = "".join(f"{name}\n" for name in sorted(left_out)).encode()
            _write(made, folder.name, files)
            largest = max(files, key=lambda name: len(files[name]), default=LEFT_OUT)
            if made.stat().st_size <= limit or largest == LEFT_OUT:
                break
            left_out.append(largest)
            del files[largest]
        made.replace(archive)
    return sorted(left_out)


def _contents(folder: Path) -> dict[str, bytes]:
    """Every file as it is now: read first, because one that grows meanwhile would not have its announced length."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and not path.name.startswith(".") and path.suffix not in NEVER:
            try:
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
            except FileNotFoundError:  # a temporary file that has got its name by now, or was removed
                continue
    return found


def _write(made: Path, top: str, files: dict[str, bytes]) -> None:
    with made.open("wb") as file:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=4) as tar:
            for name, content in files.items():
                member = tarfile.TarInfo(f"{top}/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        file.flush()
        os.fsync(file.fileno())


def main() -> int:
    """Pack, and say what was left out."""
    if len(sys.argv) != 3:
        print("pack: error: expected FOLDER and ARCHIVE.tar.gz", file=sys.stderr)
        return 2
    folder, archive = map(Path, sys.argv[1:])
    if not folder.is_dir():
        print(f"pack: error: {folder} is not a folder", file=sys.stderr)
        return 2
    left_out = pack(folder, archive)
    if left_out:
        print(f"pack: {archive} is full; left out: {', '.join(left_out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
