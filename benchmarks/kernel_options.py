"""Options and fixtures of the kernel benchmarks, and what their JSON says of the run: a plugin of pytest."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from kernel_cases import CHOSEN_MODES, GROUPS, MODES, ROUNDS, SHAPES, SLOW_ROUNDS, TYPES, Case, Plan, read
from kernel_results import FORMAT, KEY
from stopwatch import cache_bytes

import kernels
from suite.errors import UsageError
from suite.provenance import collect, without_home

PLAN = pytest.StashKey[Plan]()
PROVENANCE = pytest.StashKey[dict[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kernels", "kernel benchmarks (benchmarks/bench_kernels.py)")

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
    group.addoption("--quick", action="store_true", help="one shape, type and n:m, a few rounds: to see that it runs")


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError('kernel benchmarks need pytest-benchmark: pip install -e ".[dev]"')
    target = config.getoption("benchmark_json")
    if target and not Path(str(target)).absolute().parent.is_dir():  # it would be found out at the end alone
        raise pytest.UsageError(f"--benchmark-json {target}: its folder does not exist")
    names = ("device", "shapes", "batch_size", "dtypes", "groups", "modes", "rounds", "slow_rounds", "compile", "quick")
    try:
        config.stash[PLAN] = read({name: config.getoption(name) for name in names})
    except UsageError as error:
        raise pytest.UsageError(" ".join(str(error).split())) from None
    # Collected now, since it says how busy the machine is: at the end, that would be with the benchmarks themselves.
    config.stash[PROVENANCE] = collect(config.stash[PLAN].device) | {
        "command_line": without_home(shlex.join(["python", *sys.orig_argv[1:]]))
    }


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            item.add_marker(pytest.mark.timeout(0))  # the project's limit is for tests


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    machine_info.pop("node", None)  # the machine's name is nobody's business


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, benchmarks: Any, output_json: dict[str, Any]) -> None:
    plan = config.stash[PLAN]
    size, known_from = cache_bytes(plan.device)
    output_json[KEY] = {
        "format": FORMAT,
        "device": plan.device.type,
        "cache_bytes": size,
        "cache_known_from": known_from,
        "backend": without_home(kernels.backend_report(plan.device)),
        "rounds": plan.rounds,
        "slow_rounds": plan.slow_rounds,
        "provenance": config.stash[PROVENANCE],
    }
