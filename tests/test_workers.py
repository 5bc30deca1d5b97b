"""A run of all tests gets one worker per core; anything else is one process."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

SOURCES = pytest.Config.ArgsSource


@pytest.mark.parametrize(
    ("source", "keyword", "workers"),
    [(SOURCES.TESTPATHS, "", 3), (SOURCES.TESTPATHS, "one", None), (SOURCES.ARGS, "", None)],
)
def test_only_a_run_of_all_tests_gets_workers(request, monkeypatch, source, keyword, workers):
    conftest = request.config.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(3), raising=False)
    monkeypatch.setattr(conftest, "compile_kernels", lambda names: None)
    config = SimpleNamespace(
        args_source=source,
        pluginmanager=SimpleNamespace(hasplugin=lambda name: True),
        option=SimpleNamespace(
            numprocesses=None, keyword=keyword, markexpr=conftest.ALL_FAST, collectonly=False, usepdb=False
        ),
    )
    conftest.pytest_cmdline_main(config)
    assert config.option.numprocesses == workers
