"""Run the kernel benchmarks in the environment of a trial; their options and fixtures are in `options.py`."""

from __future__ import annotations

import pytest

from benchmarks.trial_environment import enter_trial_environment


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Restart pytest with the environment of a trial before torch is imported, and add the options."""
    # Without a trial's allocator settings, page faults of large results cost more than the pruning. Stop capturing
    # first, because the restarted process would inherit the files to which pytest redirects output.
    capture = pluginmanager.getplugin("capturemanager")
    enter_trial_environment(before=lambda: capture.stop_global_capturing() if capture else None)

    from benchmarks.kernels import options as kernel_options

    pluginmanager.register(kernel_options)
