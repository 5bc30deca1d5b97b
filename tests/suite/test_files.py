"""Files that are written atomically."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from suite import files


def part(digit):
    """Return a temporary name under which a file `x` is written."""
    return f".x.{16 * digit}.part"


def test_a_disk_that_is_full_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x"
    files.write(path, b"old")

    def full(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        files.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "x"
    files.write(path, "old")

    def write_half():
        with files.replacing(path) as file:
            file.write(b"half")
            file.flush()
            (part,) = files.parts(tmp_path)
            assert files.parts(tmp_path, "x") == [part]
            assert not files.parts(tmp_path, "x.json")
            assert path.read_text() == "old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o007, 0o660)])
def test_a_file_is_as_open_as_the_umask_lets_it(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        files.write(tmp_path / "x", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode


def test_a_folder_that_cannot_be_flushed_holds_the_new_file_all_the_same(tmp_path, monkeypatch):
    real = os.fsync

    def refuse_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    files.write(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "new"


def test_nothing_is_written_through_a_link_in_the_place_of_a_file(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    (tmp_path / "x").symlink_to(tmp_path / "thesis.tex")
    for use in (lambda path: files.append(path, "x"), files.lock):
        with pytest.raises(OSError, match="symbolic link"):
            use(tmp_path / "x")
    files.write(tmp_path / "x", "x")
    assert not (tmp_path / "x").is_symlink()
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_only_what_was_left_long_ago_is_removed(tmp_path):
    left, grows, folder = (tmp_path / part(digit) for digit in "abc")
    other = tmp_path / ".film.mp4.abcd.part"
    for path in (left, grows, other):
        path.write_text("half")
    folder.mkdir()
    for path in (left, other, folder):
        os.utime(path, (0, 0))
    files.remove_abandoned(tmp_path, "y")
    assert left.exists()
    files.remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([grows, other, folder])


@pytest.mark.parametrize("durable", [True, False])
def test_only_what_must_outlast_a_power_failure_waits_for_the_disk(tmp_path, monkeypatch, durable):
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(stat.S_IFMT(os.fstat(descriptor).st_mode)))
    files.write(tmp_path / "x", "text", durable=durable)
    assert flushed == ([stat.S_IFREG, stat.S_IFDIR] if durable else [])


def test_text_from_outside_is_clean():
    content = b'{"\\ud800": ["a\\u0000\\u001b[31m", 1, null, {"x": "\\ud83d\\ude00\\t\\n\xed\xa0\x80"}]}'
    found = files.read_json(content)
    assert found == {"\ufffd": ["a\ufffd\ufffd[31m", 1, None, {"x": "\U0001f600\t\n\ufffd"}]}
    str(found).encode()
    with pytest.raises(ValueError, match="nested too deeply"):
        files.read_json(b"[" * 100_000)
    assert files.clean("\x9b\x7f\x85\udcff") == 4 * "\ufffd"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The place of temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def age(folder):
    """Make folders older than those that have just been made and are not locked yet."""
    for path in folder.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)


def test_folders_of_killed_processes_are_removed_and_no_others(temporary):
    script = "import signal; from suite.files import temporary_folder\nwith temporary_folder('pdt-x-') as folder:\n"
    script += "    (folder / 'file').touch(); print(folder, flush=True); signal.pause()"
    command = [sys.executable, "-c", script]
    started = [subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE) for _ in range(2)]
    killed, living = (Path(one.stdout.readline().decode().strip()) for one in started)
    started[0].send_signal(signal.SIGKILL)
    started[0].wait()
    prefix = f"pdt-x-{os.getuid()}-"
    assert {killed.parent, killed.name[: len(prefix)]} == {temporary, prefix}
    (temporary / "elsewhere").mkdir()
    (temporary / "elsewhere" / "file").touch()
    (temporary / f"{prefix}link").symlink_to(temporary / "elsewhere")
    (temporary / f"{prefix}file").touch()
    (temporary / f"{prefix}new").mkdir()
    (temporary / f"{prefix}foreign").mkdir()
    if os.getuid() == 0:
        os.chown(temporary / f"{prefix}foreign", 12345, -1)
    age(temporary)
    os.utime(temporary / f"{prefix}new")
    with files.temporary_folder("pdt-x-") as folder:
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o077 == 0
        assert not killed.exists()
        assert (living / "file").exists()
        assert (temporary / "elsewhere" / "file").exists()
        assert (temporary / f"{prefix}new").exists()
        assert (temporary / f"{prefix}foreign").exists() == (os.getuid() == 0)
    assert not folder.exists()
    started[1].terminate()
    started[1].wait()
    with pytest.raises(KeyError), files.temporary_folder("pdt-x-") as folder:
        raise KeyError
    assert not folder.exists()
