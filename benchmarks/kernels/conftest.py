"""Lets the kernel benchmarks run as a trial does; their options and fixtures are in `options.py`."""

from __future__ import annotations

import pytest

from benchmarks.interleaved import restart_in_trial_environment


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Starts pytest again where the environment is another, before torch is imported, and adds the options."""
    # Without a trial's allocator settings, page faults of large results cost more than the pruning. A new process image
    # would inherit the files into which pytest diverts what is printed.
    capture = pluginmanager.getplugin("capturemanager")
    restart_in_trial_environment(before=lambda: capture.stop_global_capturing() if capture else None)

    from benchmarks.kernels import options as kernel_options

    pluginmanager.register(kernel_options)
