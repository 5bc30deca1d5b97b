"""Compilation of the CPU kernel, and the fallback to plain torch, each in a separate process."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from kernels import cache as cache_module
from kernels.cpu import build, library
from kernels.cpu.build import BASE_FLAGS, INCLUDE_FOLDERS, SOURCES, BuildError

PRUNE = """
import logging, sys
logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s", stream=sys.stderr)
import torch, kernels
grad = torch.tensor([[1.0, 7, -3, 2]])
rule = kernels.PruneRule(2, 4)
assert kernels.prune_nm(grad, rule).tolist() == [[0, 7, -3, 0]]
kernels.prune_nm(grad, kernels.PruneRule(2, 4, "random", "channel"))
print(kernels.backend_of(grad))
print(kernels.backend_report())
"""

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler")


@pytest.fixture(scope="module")
def single_threaded_library(tmp_path_factory) -> Path:
    """A library compiled without OpenMP and without optimization, which takes seconds instead of half a minute."""
    library = tmp_path_factory.mktemp("library") / "whole.so"
    includes = [f"-I{folder}" for folder in INCLUDE_FOLDERS]
    flags = [*BASE_FLAGS, "-march=native", "-O0"]
    subprocess.run(
        [*build.find_compiler(), *flags, *includes, str(SOURCES / "prune_nm.cpp"), "-o", str(library)], check=True
    )
    return library


def compiler_script(folder: Path, body: str) -> str:
    """Write an executable that replaces the compiler; `$real` in it is the machine's compiler."""
    real = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), "c++")
    script = folder / "compiler"
    script.write_text(f"#!/bin/sh\nreal={real}\n{body}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def slow_path_line(process: subprocess.Popen[str]) -> str:
    """Check that the slow path ran and was reported exactly once; return that line."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    backend, report = output.splitlines()
    lines = [line for line in errors.splitlines() if "pdt.kernels" in line]
    assert backend == "reference"
    assert lines == [f"WARNING pdt.kernels {report}"]
    assert "times slower" in report
    return report


def test_without_a_compiler_plain_torch_runs_and_says_so_once(start_python, tmp_path):
    result = start_python(PRUNE, PATH=str(tmp_path), CXX=None, PDT_CACHE=str(tmp_path / "cache"), PDT_CPU_KERNEL=None)
    assert "no C++ compiler was found ($CXX, c++, g++, clang++)" in slow_path_line(result)


def test_a_compiler_that_does_not_exist_is_named(start_python, tmp_path):
    result = start_python(PRUNE, CXX="no-such-compiler", PDT_CACHE=str(tmp_path), PDT_CPU_KERNEL=None)
    assert "'no-such-compiler'" in slow_path_line(result)


def test_a_failing_compile_gives_the_first_line_of_its_error(start_python, tmp_path):
    script = compiler_script(
        tmp_path, '[ "$1" = --version ] && exec $real --version\necho "x.h:1: error: bad" >&2\nexit 1'
    )
    result = start_python(PRUNE, CXX=script, PDT_CACHE=str(tmp_path / "cache"), PDT_CPU_KERNEL=None)
    assert "x.h:1: error: bad" in slow_path_line(result)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(start_python, tmp_path):
    (tmp_path / "file").write_text("")
    script = compiler_script(tmp_path, "exec $real --version")
    result = start_python(PRUNE, CXX=script, PDT_CACHE=str(tmp_path / "file" / "cache"), PDT_CPU_KERNEL=None)
    assert "cannot be written" in slow_path_line(result)


def test_the_kernel_can_be_turned_off(start_python):
    assert "turned off by PDT_CPU_KERNEL=0" in slow_path_line(start_python(PRUNE, PDT_CPU_KERNEL="0"))


@needs_compiler
def test_two_processes_build_at_once_without_openmp_and_a_damaged_library_is_built_again(
    start_python, single_threaded_library, tmp_path
):
    # Refusing -fopenmp makes the build fall back to one thread. The compilation is a copy.
    script = compiler_script(
        tmp_path,
        'case "$*" in *-fopenmp*) echo "error: no OpenMP" >&2; exit 1;; esac\n'
        f'[ $# -gt 1 ] && {{ for to; do :; done; sleep 0.5; exec cp {single_threaded_library} "$to"; }}\n'
        'exec $real "$@"',
    )
    cache = tmp_path / "cache"
    for process in [start_python(PRUNE, CXX=script, PDT_CACHE=str(cache), PDT_CPU_KERNEL=None) for _ in range(2)]:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        backend, report = output.splitlines()
        assert backend == "cpu"
        assert "one thread: the compiler has no OpenMP" in report
    assert "-march=native, which is slower, because error: no OpenMP" in errors
    library, note = sorted(cache.iterdir())
    assert note.name == f"{library.name}.json"

    whole = library.read_bytes()
    damages = (
        lambda: library.write_bytes(whole[:4000]),  # reading the mapped file would kill the process with SIGBUS
        # The note matches, but the file is not a library, which shows when it is opened.
        lambda: cache_module.store(write(tmp_path / "built", b"x" * 5000), library),
    )
    for damage in damages:
        damage()
        process = start_python(PRUNE, CXX=script, PDT_CACHE=str(cache), PDT_CPU_KERNEL=None)
        output, errors = process.communicate(timeout=120)
        assert (process.returncode, output.split()[:1]) == (0, ["cpu"]), errors
        assert library.read_bytes() == whole
        assert sorted(cache.iterdir()) == [library, note]


def test_a_file_that_is_not_what_was_stored_is_not_taken(tmp_path):
    path, note = tmp_path / "cache" / "k.so", tmp_path / "cache" / "k.so.json"
    assert cache_module.find(path) is None
    for damage in (
        lambda: path.write_bytes(b"kern"),
        lambda: path.write_bytes(b"kernel "),
        lambda: path.write_bytes(b"Kernel"),
        lambda: path.unlink(),
        lambda: note.unlink(),
        lambda: note.write_text("["),
        lambda: note.write_text("[" * 100_000),
        lambda: note.write_text("[1]"),
        lambda: note.write_text('{"bytes": 6, "sha256": []}'),
        lambda: note.write_text(note.read_text().replace("{}", "3")),
    ):
        with cache_module.building(path) as built:
            built.write_bytes(b"kernel")
            cache_module.store(built, path)
        assert cache_module.find(path) == {}
        damage()
        assert cache_module.find(path) is None
    cache_module.forget(path)
    assert list(path.parent.iterdir()) == []


def test_what_is_stored_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    steps, fsync, replace = [], os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (steps.append("fsync"), fsync(file)))
    monkeypatch.setattr(Path, "replace", lambda path, to: (steps.append(to.name), replace(path, to)))
    cache_module.store(write(tmp_path / "built", b"kernel"), tmp_path / "k.so", function="f")
    assert steps == ["fsync", "k.so", "fsync", "k.so.json", "fsync"]
    assert cache_module.find(tmp_path / "k.so") == {"function": "f"}


def write(path, content):
    path.write_bytes(content)
    return path


def test_temporary_files_of_killed_processes_are_removed_when_they_are_old(tmp_path):
    old, recent = tmp_path / ".building-0123.so", tmp_path / ".building-4567.so"
    for path in (old, recent):
        path.write_bytes(b"partial")
    hours_ago = time.time() - cache_module.ABANDONED_AFTER_S - 60
    os.utime(old, (hours_ago, hours_ago))
    with cache_module.building(tmp_path / "k.so") as built:
        assert sorted(tmp_path.iterdir()) == sorted([built, recent])


# The driver starts passes, as g++ starts cc1plus; each writes its process id.
HANGS = """[ "$1" = --version ] && exec $real --version
echo run >> runs
sh -c 'echo $$ >> pids; exec sleep 60' &
wait"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes in /proc")
def test_a_compiler_that_hangs_is_stopped_with_all_it_started_and_not_tried_again(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", compiler_script(tmp_path, HANGS))
    monkeypatch.setenv("PDT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "TIME_LIMIT_S", 0.6)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(build.BuildError, match=r"compiler was stopped after 0.6 s while it compiled prune_nm.cpp$"):
        build.build("prune_nm")
    assert (tmp_path / "runs").read_text() == "run\n"
    (pid,) = (tmp_path / "pids").read_text().split()
    assert ended(pid)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes in /proc")
def test_a_compiler_ends_with_the_process_that_started_it(tmp_path, start_python):
    script = compiler_script(tmp_path, HANGS.replace("runs", f"{tmp_path}/runs").replace("pids", f"{tmp_path}/pids"))
    process = start_python(PRUNE, CXX=script, PDT_CACHE=str(tmp_path / "cache"), PDT_CPU_KERNEL=None)
    pids = tmp_path / "pids"
    wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
    process.kill()
    process.communicate()
    assert ended(pids.read_text().strip())


# The process ends later than the interrupt, since its end would stop the compiler too.
LIVES_ON = """
import time
from kernels.cpu import build, library
from kernels.cpu.build import BASE_FLAGS, INCLUDE_FOLDERS, SOURCES, BuildError
try:
    build.build("prune_nm")
except KeyboardInterrupt:
    print("caught", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes in /proc")
def test_ctrl_c_stops_a_compiler_with_all_it_started(tmp_path, start_python):
    script = compiler_script(tmp_path, HANGS.replace("runs", f"{tmp_path}/runs").replace("pids", f"{tmp_path}/pids"))
    process = start_python(LIVES_ON, CXX=script, PDT_CACHE=str(tmp_path / "cache"), PDT_CPU_KERNEL=None)
    try:
        pids = tmp_path / "pids"
        wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "caught\n"
        assert ended(pids.read_text().strip())
        assert list((tmp_path / "cache").iterdir()) == []
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def ended(pid: str) -> bool:
    """Return whether a process ends within some seconds; a dead process that is not reaped has ended."""
    status = Path(f"/proc/{pid}/status")
    return wait_for(lambda: not status.exists() or "State:\tZ" in status.read_text())


def wait_for(condition) -> bool:
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.05)
    return False


@needs_compiler
def test_a_compiler_may_have_arguments(start_python, single_threaded_library, tmp_path):
    script = compiler_script(
        tmp_path,
        '[ "$1" = -O0 ] || { echo "error: the argument is missing" >&2; exit 1; }\nshift\n'
        f'[ $# -gt 1 ] && {{ for to; do :; done; exec cp {single_threaded_library} "$to"; }}\nexec $real "$@"',
    )
    cache = tmp_path / "cache"
    output, errors = start_python(PRUNE, CXX=f"{script} -O0", PDT_CACHE=str(cache), PDT_CPU_KERNEL=None).communicate(
        timeout=120
    )
    assert output.splitlines()[0] == "cpu", errors
    assert "cannot be parsed" in slow_path_line(start_python(PRUNE, CXX='"', PDT_CACHE=str(cache), PDT_CPU_KERNEL=None))


AGREES = """
import torch, kernels
from kernels.prune import cpu, reference
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    grad = (torch.randn(3, 96, 7, 5, generator=torch.Generator().manual_seed(1)) * 8).round().to(dtype)
    for m in (2, 4, 8, 16, 32, 7):
        for mode in ("magnitude", "random"):
            rule = kernels.PruneRule(m // 2, m, mode)
            pruned = kernels.prune_nm(grad, rule, seed=5)
            assert torch.equal(pruned, reference.prune_nm(grad, rule, seed=5)), (dtype, m, mode)
            compressed = zip(kernels.compress_nm(grad, rule, seed=5), reference.compress_nm(grad, rule, seed=5))
            assert all(torch.equal(*pair) for pair in compressed), (dtype, m, mode)
        for rescale in ("group", "sample_channel", "channel"):
            rule = kernels.PruneRule(m // 2, m, rescale=rescale)
            expected = reference.prune_nm(grad, rule)
            tolerance = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
            rescaled = kernels.prune_nm(grad, rule)
            torch.testing.assert_close(rescaled, expected, rtol=tolerance, atol=0)
            values, channels = kernels.compress_nm(grad, rule)
            kept = rescaled.movedim(1, -1).gather(-1, channels.long()).float()
            assert torch.equal(values, kept), (dtype, m, rescale)
assert cpu.load_compress() is not None
print(kernels.backend_of(grad), kernels.backend_report())
"""


def widest_vectors() -> int:
    """Return the bits of the widest vectors that this processor has and the kernel uses."""
    flags = Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split()
    return 512 if {"avx512f", "avx512bw"} <= set(flags) else 256 if "avx2" in flags else 128


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86-64")
@pytest.mark.slow
@pytest.mark.parametrize(("flag", "bits"), [("-mno-avx", 128), ("-mno-avx512f", 256)])
def test_narrower_vectors_agree_with_the_oracle(start_python, tmp_path, flag, bits):
    """The widest vectors of the machine are those of all other tests."""
    script = compiler_script(tmp_path, f'exec $real {flag} "$@"')
    process = start_python(AGREES, CXX=script, PDT_CACHE=str(tmp_path / "cache"), PDT_CPU_KERNEL=None)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert output.startswith("cpu ")
    # A branch that does not compile would be replaced by a narrower one, which gives the same values.
    assert f"{min(bits, widest_vectors())}-bit vectors" in output
    assert "which is slower" not in errors


def test_several_sources_are_compiled_at_the_same_time(tmp_path, monkeypatch):
    """Both compilers wait for each other, so that the test would end with an error if one followed the other."""
    together, built = threading.Barrier(2, timeout=30), []

    def build(name):
        together.wait()
        built.append(name)
        if name == "broken":
            raise BuildError("no compiler was found")

    monkeypatch.setattr(library, "build", build)
    monkeypatch.delenv("PDT_CPU_KERNEL", raising=False)
    library.compile_together("good", "broken")
    assert sorted(built) == ["broken", "good"]
    monkeypatch.setenv("PDT_CPU_KERNEL", "0")
    library.compile_together("good", "broken")
    assert len(built) == 2
