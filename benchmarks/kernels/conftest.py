"""Run the kernel benchmarks in the environment of a trial."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.measured import enter_trial_environment


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Restart pytest with the environment of a trial before torch is imported."""
    # Without a trial's allocator settings, page faults of large results cost more than the pruning. Stop capturing
    # first, because the restarted process would inherit the files to which pytest redirects output.
    capture = pluginmanager.getplugin("capturemanager")
    enter_trial_environment(before=lambda: capture.stop_global_capturing() if capture else None)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Record the provenance of a trial, and not the name of the machine."""
    from benchmarks.kernels.bench_kernels import DEVICE
    from suite.trials.provenance import collect

    del machine_info["node"]
    machine_info["provenance"] = collect(DEVICE)
