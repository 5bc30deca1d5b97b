"""Pytest plugin with the options and fixtures of the kernel benchmarks and the facts in their JSON file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import kernels
from benchmarks.kernels.cases import CHOSEN_MODES, GROUPS, MODES, ROUNDS, SHAPES, SLOW_ROUNDS, TYPES, Case, Plan
from benchmarks.kernels.cases import read as read_plan
from benchmarks.kernels.results import FORMAT, KEY
from benchmarks.partial_results import OtherRunError, compare, read, write
from benchmarks.stopwatch import cache_bytes
from suite.errors import UsageError
from suite.files import without_home
from suite.trials.provenance import collect

PLAN = pytest.StashKey[Plan]()
PROVENANCE = pytest.StashKey[dict[str, Any]]()
MEASURED = pytest.StashKey[list[dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kernels", "kernel benchmarks (benchmarks/kernels/bench_kernels.py)")

    def default(by_kind: dict[str, Any]) -> str:
        return "; ".join(f"{kind}: {value}" for kind, value in by_kind.items())

    group.addoption("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
    group.addoption(
        "--shapes",
        metavar="LIST",
        help="comma list of large (one tensor over 256 MB on CUDA, or four times the last-level cache on a CPU), "
        "registered models such as resnet9[width=0.25], and models of torchvision such as resnet18 "
        f"({default(SHAPES)})",
    )
    group.addoption(
        "--batch-size", metavar="N", type=int, help="batch size of the models' shapes (512; torchvision: 256)"
    )
    group.addoption("--dtypes", metavar="LIST", help=f"number types ({default(TYPES)})")
    group.addoption("--groups", metavar="LIST", help=f"n:m ({default(GROUPS)})")
    group.addoption("--modes", metavar="LIST", help=f"{', '.join(MODES)} ({default(CHOSEN_MODES)})")
    group.addoption("--rounds", metavar="N", type=int, help=f"interleaved pairs of kernel and copy ({default(ROUNDS)})")
    group.addoption(
        "--slow-rounds",
        metavar="N",
        type=int,
        help=f"interleaved pairs of kernel and each alternative, 0 for none ({default(SLOW_ROUNDS)})",
    )
    group.addoption("--compile", action="store_true", help="add torch.compile of the reference as an alternative; slow")
    group.addoption(
        "--json",
        metavar="FILE",
        type=Path,
        help="save each case as soon as it is measured, in the format of --benchmark-json; the same command continues "
        "with the cases that the file does not have",
    )
    group.addoption("--quick", action="store_true", help="one shape, type and n:m with a few rounds, as a test run")


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError('kernel benchmarks need pytest-benchmark: pip install -e ".[dev]"')
    for option in ("benchmark_json", "json"):
        target = config.getoption(option)
        if (
            target and not Path(str(target)).absolute().parent.is_dir()
        ):  # otherwise the error would appear only at the end
            raise pytest.UsageError(f"--{option.replace('_', '-')} {target}: its folder does not exist")
    names = ("device", "shapes", "batch_size", "dtypes", "groups", "modes", "rounds", "slow_rounds", "compile", "quick")
    try:
        config.stash[PLAN] = read_plan({name: config.getoption(name) for name in names})
    except UsageError as error:
        raise pytest.UsageError(" ".join(str(error).split())) from None
    # Collect the provenance now: at the end, the load of the machine would include the benchmarks themselves.
    config.stash[PROVENANCE] = collect(config.stash[PLAN].device) | {
        "command_line": without_home(shlex.join(["python", *sys.orig_argv[1:]]))
    }
    try:
        config.stash[MEASURED] = measured_before(config)
    except OtherRunError as error:
        raise pytest.UsageError(str(error)) from None


def measured_before(config: pytest.Config) -> list[dict[str, Any]]:
    """Return the cases that the file of --json already has.

    Raises:
        OtherRunError: If they were measured by other code or on other hardware.
    """
    path: Path | None = config.getoption("json")
    if path is None or not path.exists():
        return []
    content = read(path, "benchmarks")

    def common(facts: dict[str, Any]) -> dict[str, Any]:
        provenance = facts.get("provenance", {})
        torch_version = provenance.get("software", {}).get("torch")
        settings = {name: facts.get(name) for name in ("format", "device", "rounds", "slow_rounds")}
        return settings | {name: provenance.get(name) for name in ("hardware_id", "git")} | {"torch": torch_version}

    compare(path, common(content.get(KEY, {})), common(facts_of(config)))
    found: list[dict[str, Any]] = content["benchmarks"]
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        kernel = metafunc.function.__name__.removeprefix("test_")
        names: list[Any] = [case.name for case in metafunc.config.stash[PLAN].cases if case.kernel == kernel]
        none = pytest.param("none", marks=pytest.mark.skip(reason=f"no selected case uses kernels.{kernel}"))
        metafunc.parametrize("case", names or [none], indirect=True)


@pytest.fixture(scope="session")
def plan(pytestconfig: pytest.Config) -> Plan:
    """Selected cases and settings."""
    return pytestconfig.stash[PLAN]


@pytest.fixture
def case(request: pytest.FixtureRequest, plan: Plan) -> Case:
    """Case of the current test."""
    kernel = request.function.__name__.removeprefix("test_")
    return next(item for item in plan.cases if (item.kernel, item.name) == (kernel, request.param))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Save a case as soon as it is measured; a failed case raises at `yield`."""
    outcome = yield
    path: Path | None = item.config.getoption("json")
    benchmark = getattr(item, "funcargs", {}).get("benchmark")
    if path is not None and benchmark is not None and benchmark.stats:
        names = ("min", "max", "mean", "stddev", "median", "rounds")
        stats = {name: getattr(benchmark.stats.stats, name) for name in names}
        found = item.config.stash[MEASURED]
        found.append({"name": item.name, "extra_info": dict(benchmark.extra_info), "stats": stats})
        write(path, {"benchmarks": found, KEY: facts_of(item.config)})
    return outcome


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    # If all cases were measured before, pytest has no test to run, which is not an error.
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.stash[MEASURED]:
        session.exitstatus = pytest.ExitCode.OK


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    before = {one["name"] for one in config.stash[MEASURED]}
    done = [item for item in items if item.name in before]
    items[:] = [item for item in items if item.name not in before]
    config.hook.pytest_deselected(items=done)
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            item.add_marker(pytest.mark.timeout(0))  # the project's time limit is meant for tests


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    machine_info.pop("node", None)  # do not record the name of the machine


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, benchmarks: Any, output_json: dict[str, Any]) -> None:
    output_json[KEY] = facts_of(config)


def facts_of(config: pytest.Config) -> dict[str, Any]:
    """Return the facts that all cases of the run share."""
    plan = config.stash[PLAN]
    size, known_from = cache_bytes(plan.device)
    return {
        "format": FORMAT,
        "device": plan.device.type,
        "cache_bytes": size,
        "cache_known_from": known_from,
        "backend": without_home(kernels.backend_report(plan.device)),
        "rounds": plan.rounds,
        "slow_rounds": plan.slow_rounds,
        "provenance": config.stash[PROVENANCE],
    }
