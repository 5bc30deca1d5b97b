"""A full disk: the message names reason and file, and the same command continues when there is space again."""

import shutil
import subprocess

import pytest
import suites
from shards import shards

SIZES = 10


def mount(folder, *options):
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system of a chosen size can be mounted here: {done.stderr.strip()}")


def full_and_run_again(base, folder, share, tally):
    used = sum(path.stat().st_size for path in base.out.rglob("*") if path.is_file())
    disk = folder / "disk"
    disk.mkdir(parents=True)
    # Sizes in pages of 4 KiB; each file and folder takes some.
    mount(disk, "-t", "tmpfs", "-o", f"size={max(4096, int(share * used))}", "tmpfs")
    try:
        out = disk / "out"
        ended = suites.run(out, folder / "full")
        tally["disks"] += 1
        tally["tracebacks"] += "Traceback" in ended.output
        where = f"a disk of {share:.2f} times what is needed"
        assert "Traceback" not in ended.output, f"{where}: {ended.output}"
        assert ended.status in (1, 2), f"{where}: {ended.status}: {ended.output}"
        assert "No space left on device: " in ended.output, f"{where}: {ended.output}"
        assert not ended.orphans, where
        mount(disk, "-o", "remount,size=64m")
        suites.age(out)
        again = suites.run(out, folder / "again")
        assert again.status == 0, f"{where}: {again.output}"
        accepted = suites.whole(out) != base.whole
        tally["accepted"] += accepted
        assert not accepted, where
        assert suites.left_behind(out) == [], where
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture(autouse=True)
def mounts():
    if shutil.which("mount") is None:
        pytest.skip("there is no program `mount`")


def test_a_disk_that_is_full(base, tmp_path, tally):
    full_and_run_again(base, tmp_path, 0.5, tally)


@shards(range(SIZES), slow=(0, 4, 9))
def test_full_disks_of_ten_sizes(base, tmp_path, tally, number):
    full_and_run_again(base, tmp_path, 0.02 + 0.098 * number, tally)
