"""Compilation of the CPU kernel, and the fallback to plain torch."""

from __future__ import annotations

import functools
import logging
import os
import shutil
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch
from instruction_sets import library_of

import kernels
from kernels import cache as cache_module
from kernels import first_use
from kernels.cpu import build, library
from kernels.cpu.build import BuildError
from kernels.prune import cpu, dispatch, proof

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler")


@pytest.fixture(autouse=True)
def native(monkeypatch):
    """These tests are of the build for this processor, also where the others run kernels of another instruction set."""
    monkeypatch.delenv("PDT_CPU_ARCH", raising=False)


@pytest.fixture(scope="module")
def single_threaded_library() -> Path:
    """A library compiled without OpenMP and without optimization, kept for the next run of the tests."""
    return library_of("prune_nm", ("-O0",))


def compiler_script(folder: Path, body: str) -> str:
    """Write an executable that replaces the compiler; `$real` in it is the machine's compiler."""
    real = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), "c++")
    script = folder / "compiler"
    script.write_text(f"#!/bin/sh\nreal={real}\n{body}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


@pytest.fixture
def copied_library(single_threaded_library, tmp_path, monkeypatch):
    """Let a compilation be a copy of a library; the cache is `tmp_path / "cache"`."""
    script = compiler_script(
        tmp_path,
        f"[ $# -gt 1 ] && {{ for to; do :; done; echo run >> {tmp_path}/runs;\n"
        f'exec cp {single_threaded_library} "$to"; }}\n'
        'exec $real "$@"',
    )
    monkeypatch.setenv("CXX", script)
    monkeypatch.setenv("PDT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PDT_CPU_KERNEL", raising=False)
    return tmp_path / "cache"


def refuse_flag(folder: Path, flag: str, error: str) -> None:
    """Let the compiler of `copied_library` refuse a flag."""
    script = folder / "compiler"
    refusal = f'case "$*" in *{flag}*) echo "error: {error}" >&2; exit 1;; esac; [ $# -gt 1 ]'
    script.write_text(script.read_text().replace("[ $# -gt 1 ]", refusal))


@pytest.fixture
def slow_path_line(monkeypatch, caplog):
    """Let this process load the kernel as a new one does; check that plain torch runs and is reported exactly once.

    What is returned does so, and returns the reported line.
    """
    monkeypatch.delenv("PDT_CPU_KERNEL", raising=False)
    monkeypatch.setattr(dispatch, "_replayed", {})

    def line() -> str:
        monkeypatch.setattr(cpu, "load", functools.cache(cpu.load.__wrapped__))
        caplog.clear()
        grad = torch.tensor([[1.0, 7, -3, 2]])
        with caplog.at_level(logging.WARNING, "pdt.kernels"):
            assert kernels.prune_nm(grad, kernels.PruneRule(2, 4)).tolist() == [[0, 7, -3, 0]]
            kernels.prune_nm(grad, kernels.PruneRule(2, 4, "random", "channel"))
            assert kernels.backend_of(grad) == "reference"
            report = kernels.backend_report()
        records = [record for record in caplog.records if record.name == "pdt.kernels"]
        assert [(record.levelname, record.message) for record in records] == [("WARNING", report)]
        assert "times slower" in report
        return report

    return line


def test_without_a_compiler_plain_torch_runs_and_says_so_once(slow_path_line, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PDT_CACHE", str(tmp_path / "cache"))
    assert "no C++ compiler was found ($CXX, c++, g++, clang++)" in slow_path_line()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "'no-such-compiler'" in slow_path_line()
    monkeypatch.setenv("CXX", '"')
    assert "cannot be parsed" in slow_path_line()
    monkeypatch.setenv("PDT_CPU_KERNEL", "0")
    assert "turned off by PDT_CPU_KERNEL=0" in slow_path_line()


def test_a_compile_that_fails_and_a_cache_that_cannot_be_written_are_told(slow_path_line, tmp_path, monkeypatch):
    body = '[ "$1" = --version ] && exec $real --version\necho "x.h:1: error: bad" >&2\nexit 1'
    monkeypatch.setenv("CXX", compiler_script(tmp_path, body))
    monkeypatch.setenv("PDT_CACHE", str(tmp_path / "cache"))
    assert "x.h:1: error: bad" in slow_path_line()
    assert list((tmp_path / "cache").iterdir()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PDT_CACHE", str(tmp_path / "file" / "cache"))
    assert "cannot be written" in slow_path_line()


@needs_compiler
def test_a_build_without_openmp_says_so_and_a_damaged_library_is_built_again(copied_library, tmp_path):
    # Refusing -fopenmp makes the build fall back to one thread.
    refuse_flag(tmp_path, "-fopenmp", "no OpenMP")
    assert build.has_to_compile("prune_nm")
    built = build.build("prune_nm")
    assert not build.has_to_compile("prune_nm")
    assert built.refused == "error: no OpenMP"
    assert "-fopenmp" not in built.flags
    path, whole = built.library, built.library.read_bytes()
    # The note matches, but the file is not a library, which shows when it is opened.
    cache_module.store(write(tmp_path / "built", b"x" * 5000), path)
    with pytest.raises(BuildError, match=r"prune_nm.* cannot be loaded \(.*\); remove it to compile it again$"):
        library.open_library("prune_nm", Kernels, agrees)
    # Reading the mapped file would kill the process with SIGBUS. The one that this process has opened stays whole.
    path.unlink()
    path.write_bytes(whole[:4000])
    library.open_library("prune_nm", Kernels, agrees)
    assert path.read_bytes() == whole


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


def test_what_is_stored_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    steps, fsync, replace = [], os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (steps.append("fsync"), fsync(file)))
    monkeypatch.setattr(Path, "replace", lambda path, to: (steps.append(to.name), replace(path, to)))
    cache_module.store(write(tmp_path / "built", b"kernel"), tmp_path / "k.so", function="f")
    assert steps == ["fsync", "k.so", "fsync", "k.so.json", "fsync"]
    assert cache_module.find(tmp_path / "k.so") == {"function": "f"}


class Kernels:
    """Stand-in for bound kernels."""

    def __init__(self, library):
        self.library = library


def agrees(kernels):
    return ""


def refuse(*arguments, **facts):
    raise PermissionError


@needs_compiler
def test_a_library_is_compared_with_its_definition_once(copied_library, monkeypatch):
    calls = []

    def proof(kernels):
        calls.append((threading.current_thread(), torch.is_grad_enabled()))
        return ""

    with torch.no_grad():
        library.open_library("prune_nm", Kernels, proof)
    ((thread, grad_enabled),) = calls
    assert thread is not threading.current_thread()  # it does not see the modes of the caller
    assert grad_enabled
    library.open_library("prune_nm", Kernels, proof)
    assert len(calls) == 1
    # A proof of another file is another proof, and so is one of a library that was stored again.
    monkeypatch.setattr(proof, "__module__", "kernels.prune.proof")
    library.open_library("prune_nm", Kernels, proof)
    library.open_library("prune_nm", Kernels, proof)
    assert len(calls) == 2
    (path,) = copied_library.glob("*.so")
    cache_module.store(write(copied_library / "same", path.read_bytes()), path)
    library.open_library("prune_nm", Kernels, proof)
    assert len(calls) == 3
    # Where nothing can be noted, every process compares.
    cache_module.store(write(copied_library / "same", path.read_bytes()), path)
    monkeypatch.setattr(cache_module, "add_facts", refuse)
    for _ in range(2):
        library.open_library("prune_nm", Kernels, proof)
    assert len(calls) == 5


@needs_compiler
def test_the_slow_path_takes_the_place_of_a_kernel_that_differs(slow_path_line, copied_library, monkeypatch):
    monkeypatch.setattr(proof, "prunes", lambda kernel, case: case.rule.m != 32)
    assert "differs from its definition: prune_nm, magnitude 1:32 of float32 (2, 96, 3, 5)" in slow_path_line()


def test_the_cache_is_made_for_its_user_alone(tmp_path):
    before = os.umask(0o002)
    try:
        with cache_module.building(tmp_path / "new" / "cache" / "k.so") as built:
            built.write_bytes(b"kernel")
            cache_module.store(built, tmp_path / "new" / "cache" / "k.so")
        cache_module.add_facts(tmp_path / "new" / "cache" / "k.so", agrees="yes")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").rglob("*")}
    assert modes.pop("cache") == stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert sorted(modes) == ["k.so", "k.so.json"]
    assert not any(mode & 0o022 for mode in modes.values())
    assert cache_module.find(tmp_path / "new" / "cache" / "k.so") == {"agrees": "yes"}


@pytest.fixture
def stored(tmp_path):
    """A file in a cache that its user made long ago, with mode 0755."""
    (tmp_path / "cache").mkdir(mode=0o755)
    path = tmp_path / "cache" / "k.so"
    with cache_module.building(path) as built:
        built.write_bytes(b"kernel")
        cache_module.store(built, path)
    assert cache_module.find(path) == {}
    return path


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_cache_that_others_can_write_is_refused_in_one_line(stored, mode, through_a_link):
    folder = stored.parent
    folder.chmod(mode)
    if through_a_link:
        (folder.parent / "link").symlink_to(folder)
        stored = folder.parent / "link" / stored.name
    # A folder such as /tmp has to stay open.
    close = "" if mode & 0o1000 else f"type chmod go-w {folder}, or "
    expected = (
        f"the cache {folder} is not used: others can write to it (mode {mode:04o}); {close}"
        "set PDT_CACHE to a folder of your own"
    )
    for use in (cache_module.find, lambda path: cache_module.building(path).__enter__()):
        with pytest.raises(cache_module.RefusedError) as refused:
            use(stored)
        assert str(refused.value) == expected
    subprocess.run(["chmod", "-R", "go-w", folder], check=True)
    assert cache_module.find(stored) == {}


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="there are no users with numbers")
def test_a_cache_of_somebody_else_is_refused_in_one_line(stored, monkeypatch):
    owner = stored.parent.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    if owner == 0:  # root's files are trusted: the administrator may provide a cache
        assert cache_module.find(stored) == {}
        os.chown(stored.parent, 1234, -1)
        owner = 1234
    with pytest.raises(cache_module.RefusedError) as refused:
        cache_module.find(stored)
    assert str(refused.value) == (
        f"the cache {stored.parent} is not used: it belongs to the user {owner}, and you are 4321; set PDT_CACHE to a "
        "folder of your own"
    )


@pytest.mark.parametrize("suffix", ["", ".json"])
def test_a_file_that_others_can_write_is_not_taken(stored, suffix, caplog):
    path = stored.with_name(f"{stored.name}{suffix}")
    path.chmod(0o666)
    with caplog.at_level(logging.WARNING, "pdt.kernels"):
        assert cache_module.find(stored) is None
    assert caplog.messages == [
        f"the cached kernel {path} is not used, and compiled again: others can write to it (mode 0666)"
    ]


def test_without_users_and_modes_the_cache_is_used(stored, monkeypatch):
    stored.parent.chmod(0o777)
    monkeypatch.delattr(os, "geteuid")
    assert cache_module.find(stored) == {}


def test_torch_compile_keeps_its_code_where_nobody_else_can_write(tmp_path, monkeypatch):
    monkeypatch.setenv("PDT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    cache_module.keep_code_of_torch_compile()
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert folder == tmp_path / "cache" / "inductor"
    assert [stat.S_IMODE(one.stat().st_mode) for one in (folder, folder.parent)] == [0o700, 0o700]
    for opened in (folder, folder.parent):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
        opened.chmod(0o777)
        with pytest.raises(cache_module.RefusedError, match=rf"the cache {opened} is not used: others can write to it"):
            cache_module.keep_code_of_torch_compile()
        opened.chmod(0o700)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/chosen")
    cache_module.keep_code_of_torch_compile()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/chosen"


@needs_compiler
def test_a_library_in_a_cache_that_others_can_write_is_not_opened(slow_path_line, copied_library):
    build.build("prune_nm")
    copied_library.chmod(0o777)
    line = slow_path_line()
    assert f"because the cache {copied_library} is not used: others can write to it (mode 0777)" in line


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("haswell", "$PDT_CPU_ARCH is 'haswell', and may be native, x86-64, x86-64-v2, x86-64-v3, x86-64-v4"),
        ("x86-64-v3", "$PDT_CPU_ARCH is x86-64-v3, and this processor has no avx2, fma"),
    ],
)
def test_an_instruction_set_that_is_unknown_or_missing_is_named(chosen, message, monkeypatch):
    monkeypatch.setenv("PDT_CPU_ARCH", chosen)
    features = set().union(*build.ARCHITECTURES.values()) - {"avx2", "fma"}
    monkeypatch.setattr(build, "_processor", lambda: iter(["a processor", " ".join(features)]))
    with pytest.raises(BuildError) as refused:
        build.build("prune_nm")
    assert str(refused.value) == message


def test_a_chosen_instruction_set_is_never_replaced(copied_library, tmp_path, monkeypatch):
    everything = " ".join(set().union(*build.ARCHITECTURES.values()))
    monkeypatch.setattr(build, "_processor", lambda: iter([everything]))
    paths = {build.build("prune_nm").library}
    for chosen in build.ARCHITECTURES:
        monkeypatch.setenv("PDT_CPU_ARCH", chosen)
        built = build.build("prune_nm")
        assert f"-march={chosen}" in built.flags
        paths.add(built.library)
    assert len(paths) == 5
    refuse_flag(tmp_path, "-march=", "no such set")
    for path in paths:
        path.unlink()
    with pytest.raises(BuildError, match="failed: error: no such set"):
        build.build("prune_nm")
    assert (tmp_path / "runs").read_text() == 5 * "run\n"


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


# The process ends later than the interrupt, since its end would stop the compiler too.
LIVES_ON = """
from kernels.cpu import build
try:
    build.build("prune_nm")
except KeyboardInterrupt:
    print("caught", flush=True)
    build.build("prune_nm")
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes in /proc")
def test_a_compiler_ends_with_all_it_started_at_ctrl_c_and_with_the_process_that_started_it(tmp_path, start_python):
    script = compiler_script(tmp_path, HANGS.replace("runs", f"{tmp_path}/runs").replace("pids", f"{tmp_path}/pids"))
    process = start_python(LIVES_ON, CXX=script, PDT_CACHE=str(tmp_path / "cache"), PDT_CPU_KERNEL=None)

    def started(number: int) -> str:
        pids = tmp_path / "pids"
        assert wait_for(lambda: pids.exists() and pids.read_text().count("\n") == number)
        return pids.read_text().split()[-1]

    try:
        first = started(1)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "caught\n"
        assert ended(first)
        second = started(2)
        assert len(list((tmp_path / "cache").iterdir())) == 1  # the second one is being built
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
    assert ended(second)


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
def test_a_compiler_may_have_arguments(copied_library, monkeypatch):
    without = build.build("prune_nm").library
    monkeypatch.setenv("CXX", f"{os.environ['CXX']} -O0")
    assert build.find_compiler()[1:] == ["-O0"]
    assert build.build("prune_nm").library != without


def test_sources_are_compiled_at_the_same_time_and_announced_once(monkeypatch, caplog):
    """Both compilers wait for each other, so that the test would end with an error if one followed the other."""
    together, opened = threading.Barrier(2, timeout=30), []

    def opener(name):
        return lambda: (together.wait(), opened.append(name))

    monkeypatch.setattr(first_use, "OPENERS", {name: opener(name) for name in ("one", "other", "old")})
    monkeypatch.setattr(first_use, "has_to_compile", lambda name: name != "old" and name not in opened)
    with caplog.at_level(logging.INFO, "pdt.kernels"):
        for _ in range(2):
            first_use.compile_kernels({"one", "old", "other"})
    assert sorted(opened) == ["one", "other"]
    assert caplog.messages == ["compiling the CPU kernels one, other, once for this machine: about 15 s"]
