"""A run of all tests gets one worker per core; anything else is one process."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(("arguments", "workers"), [((), 3), (("tests/suite",), None)])
def test_only_a_run_of_all_tests_gets_workers(request, monkeypatch, arguments, workers):
    conftest = request.config.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(3), raising=False)
    monkeypatch.setattr(conftest, "compile_together", lambda *names: None)
    config = SimpleNamespace(
        invocation_params=SimpleNamespace(args=arguments),
        pluginmanager=SimpleNamespace(hasplugin=lambda name: True),
        option=SimpleNamespace(numprocesses=None),
    )
    conftest.pytest_cmdline_main(config)
    assert config.option.numprocesses == workers
