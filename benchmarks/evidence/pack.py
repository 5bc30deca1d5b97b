"""Pack a folder of results into one archive, which is replaced atomically.

    python -m benchmarks.evidence.pack FOLDER ARCHIVE.tar.gz

Trained networks are omitted. If the archive would exceed the size that can be copied back from a rented machine, the
largest files are omitted too; LEFT_OUT.txt in the archive names them. Processes that pack the same folder wait for each
other, so that a later archive never lacks a file of an earlier one.
"""

from __future__ import annotations

import fcntl
import io
import os
import sys
import tarfile
from pathlib import Path

LIMIT_BYTES = 15 * 2**20  # below 16 MiB, the limit for one file
LEFT_OUT = "LEFT_OUT.txt"
NEVER = (".pt", ".part")  # files that begin with a dot are omitted too


def pack(folder: Path, archive: Path, limit: int = LIMIT_BYTES) -> list[str]:
    """Pack the current files of a folder.

    Returns:
        Names of the files that were omitted because of their size.

    Raises:
        OSError: If the archive cannot be written; the previous archive is not changed.
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
    """Read every file before packing, because a file that grows while it is packed would not match its length."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and not path.name.startswith(".") and path.suffix not in NEVER:
            try:
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
            except FileNotFoundError:  # a temporary file that was renamed or removed meanwhile
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
    """Pack the folder and print the files that were omitted."""
    if len(sys.argv) != 3:
        print("pack: error: expected FOLDER and ARCHIVE.tar.gz", file=sys.stderr)
        return 2
    folder, archive = map(Path, sys.argv[1:])
    if not folder.is_dir():
        print(f"pack: error: {folder} is not a folder", file=sys.stderr)
        return 2
    left_out = pack(folder, archive)
    if left_out:
        print(f"pack: {archive} has reached its size limit; omitted: {', '.join(left_out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
