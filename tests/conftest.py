"""How the tests run: one thread a process, and the whole suite on every core.

The tests' nets are small, and threads that wait for each other cost more than they bring.
"""

import atexit
import os
import signal
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Kernels are compiled once, not again in each home folder that a test sets.
os.environ.setdefault("PDT_CACHE", str(Path("~/.cache/pdt-kernels").expanduser()))
if "PDT_CHOICES" not in os.environ:  # what tests measure on a busy machine must not decide for the user's trials
    from suite.files import temporary_folder

    _choices = temporary_folder("pdt-choices-")  # of killed tests, the next ones remove it
    os.environ["PDT_CHOICES"] = str(_choices.__enter__())
    atexit.register(_choices.__exit__, None, None, None)

import forks
import hypothesis
import pytest
import torch

from kernels.first_use import OPENERS, compile_kernels
from methods.backends import autotune

pytest_plugins = ["toy_fixtures"]

hypothesis.settings.register_profile("shared machine", deadline=None)  # other programs may delay any example
hypothesis.settings.load_profile("shared machine")

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
if not torch.cuda.is_available():
    # Fake tensors, of which torch.compile makes use, register a fake GPU. If autograd runs for the first time after
    # that, it starts threads for this GPU, and refuses to run in forked processes, in which tests train.
    torch.ones(1, requires_grad=True).sum().backward()


# Read before any test changes HOME.
REAL_DATA = Path(os.environ.get("PDT_DATA", "~/.cache/pdt-data")).expanduser()


@pytest.fixture
def real_data() -> Path:
    """The data root of this machine, if it contains the unpacked JPEG copy."""
    if not (REAL_DATA / "cifar10" / "train" / "airplane").is_dir():
        pytest.skip(f"{REAL_DATA} has no cifar10/train: unpack shared/data there, or set PDT_DATA")
    return REAL_DATA


@pytest.fixture(autouse=True)
def _arithmetic():
    """Undo what a test that trains in this process sets: tests of kernels compare subnormal numbers bit for bit."""
    yield
    torch.set_flush_denormal(False)


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets its background jobs ignore Ctrl-C, and their children with them; tests send it to theirs.
    signal.signal(signal.SIGINT, signal.default_int_handler)

MOST_WORKERS = 8  # each of them imports torch
ALL_FAST = "not slow and not long"
# Files that take longest, which workers start with: one that began last would leave the other workers without work.
FIRST = (
    "test_pages.py",
    "test_resume.py",
    "test_number_formats.py",
    "test_conformance.py",
    "test_architecture.py",
    "test_models.py",
    "test_compress_nm.py",
    "test_time_pass.py",
)


@pytest.fixture(scope="session", autouse=True)
def measured_rounds():
    """Let one round of samples choose backends, which would cost most of a small trial; return the real numbers."""
    names = ("FEWEST_ROUNDS", "MOST_ROUNDS", "SHORTEST_SAMPLE_S")
    real = {name: getattr(autotune, name) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(names, (1, 1, 0.0), strict=True):
            patch.setattr(autotune, name, value)
        yield real


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Give a run of all fast tests a worker a core; anything else is one process, or what it asks for.

    Files stay whole, for their fixtures.
    """
    if hasattr(config, "workerinput") or "PYTEST_XDIST_WORKER" in os.environ:
        return  # a worker, which reads this file too, and would start workers of its own
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    option = config.option
    chosen = option.keyword or option.markexpr != ALL_FAST or option.collectonly or option.usepdb
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not chosen
    if whole and cores > 1 and config.pluginmanager.hasplugin("xdist") and option.numprocesses is None:
        # Each worker would wait for the kernels, or build them itself.
        compile_kernels(OPENERS)
        option.numprocesses, option.dist = min(cores, MOST_WORKERS), "loadfile"
        option.loadscopereorder = False  # xdist would begin with the files of most tests, not the longest


def pytest_configure(config: pytest.Config) -> None:
    """Fork the programs that tests start; the workers are started."""
    if not config.getoption("numprocesses", None):
        forks.install()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let workers begin with the files of `FIRST`; the order within a file stays."""
    if hasattr(config, "workerinput"):
        places = {name: place for place, name in enumerate(FIRST)}
        items.sort(key=lambda item: places.get(item.path.name, len(FIRST)))
