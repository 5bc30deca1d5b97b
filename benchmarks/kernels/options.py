"""Options and fixtures of the kernel benchmarks, and what their JSON says of the run: a plugin of pytest."""

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
from suite.runs.provenance import collect, without_home

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
        help="large (one tensor over 256 MB on CUDA, of four last-level caches on a CPU), registered models such as "
        f"resnet9[width=0.25], torchvision's such as resnet18 ({default(SHAPES)})",
    )
    group.addoption("--batch-size", metavar="N", type=int, help="of the models' shapes (512; torchvision's: 256)")
    group.addoption("--dtypes", metavar="LIST", help=f"number types ({default(TYPES)})")
    group.addoption("--groups", metavar="LIST", help=f"n:m ({default(GROUPS)})")
    group.addoption("--modes", metavar="LIST", help=f"{', '.join(MODES)} ({default(CHOSEN_MODES)})")
    group.addoption("--rounds", metavar="N", type=int, help=f"interleaved pairs of kernel and copy ({default(ROUNDS)})")
    group.addoption(
        "--slow-rounds",
        metavar="N",
        type=int,
        help=f"interleaved pairs with each alternative, 0 for none ({default(SLOW_ROUNDS)})",
    )
    group.addoption("--compile", action="store_true", help="torch.compile of the oracle is an alternative too; slow")
    group.addoption(
        "--json",
        metavar="FILE",
        type=Path,
        help="where each case is kept as soon as it is measured, in the form of --benchmark-json; the same command "
        "goes on with the cases that are not in there",
    )
    group.addoption("--quick", action="store_true", help="one shape, type and n:m, a few rounds: to see that it runs")


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError('kernel benchmarks need pytest-benchmark: pip install -e ".[dev]"')
    for option in ("benchmark_json", "json"):
        target = config.getoption(option)
        if target and not Path(str(target)).absolute().parent.is_dir():  # it would be found out at the end alone
            raise pytest.UsageError(f"--{option.replace('_', '-')} {target}: its folder does not exist")
    names = ("device", "shapes", "batch_size", "dtypes", "groups", "modes", "rounds", "slow_rounds", "compile", "quick")
    try:
        config.stash[PLAN] = read_plan({name: config.getoption(name) for name in names})
    except UsageError as error:
        raise pytest.UsageError(" ".join(str(error).split())) from None
    # Collected now, since it says how busy the machine is: at the end, that would be with the benchmarks themselves.
    config.stash[PROVENANCE] = collect(config.stash[PLAN].device) | {
        "command_line": without_home(shlex.join(["python", *sys.orig_argv[1:]]))
    }
    try:
        config.stash[MEASURED] = measured_before(config)
    except OtherRunError as error:
        raise pytest.UsageError(str(error)) from None


def measured_before(config: pytest.Config) -> list[dict[str, Any]]:
    """The cases that the file of --json has; they were measured by the same code on the same hardware.

    Raises:
        OtherRunError: if they were not.
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
        none = pytest.param("none", marks=pytest.mark.skip(reason=f"no chosen case is one of kernels.{kernel}"))
        metafunc.parametrize("case", names or [none], indirect=True)


@pytest.fixture(scope="session")
def plan(pytestconfig: pytest.Config) -> Plan:
    """What was chosen."""
    return pytestconfig.stash[PLAN]


@pytest.fixture
def case(request: pytest.FixtureRequest, plan: Plan) -> Case:
    """The case of this test."""
    kernel = request.function.__name__.removeprefix("test_")
    return next(item for item in plan.cases if (item.kernel, item.name) == (kernel, request.param))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Keep a case as soon as it is measured; one that fails raises here."""
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
    # Where all was measured before, pytest finds no test to run, and that is no failure.
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.stash[MEASURED]:
        session.exitstatus = pytest.ExitCode.OK


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    before = {one["name"] for one in config.stash[MEASURED]}
    done = [item for item in items if item.name in before]
    items[:] = [item for item in items if item.name not in before]
    config.hook.pytest_deselected(items=done)
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            item.add_marker(pytest.mark.timeout(0))  # the project's limit is for tests


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    machine_info.pop("node", None)  # the machine's name is nobody's business


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, benchmarks: Any, output_json: dict[str, Any]) -> None:
    output_json[KEY] = facts_of(config)


def facts_of(config: pytest.Config) -> dict[str, Any]:
    """What all cases of the run have in common."""
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
