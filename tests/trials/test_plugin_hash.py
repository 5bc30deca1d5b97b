"""A trial's hash depends on the plugin files that define what it uses, and on no other plugin files."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
from small_trials import planned, untrained
from toy_suite import ROOT, TOY, forget_plugins

from suite import registry
from suite.errors import UsageError
from suite.trials import plugin_files
from suite.trials.spec import TrialSpec

METHOD = """
from suite.method import Method
from suite.registry import register

@register("method", "{name}")
class {name}(Method):
    "A method for tests."
"""

pytestmark = pytest.mark.usefixtures("forget_toys")


def loaded(*paths):
    """Function that loads plugins as a new process does."""
    forget_plugins()
    for path in paths:
        registry.load_plugin(path)


def test_trials_without_plugins_have_no_defining_files():
    assert untrained(defined_by={}, plugins=("/x.py",)).hash == untrained().hash
    assert all(not trial.defined_by for trial in planned("dense,sdgp,scratch"))


def test_a_plugins_content_names_the_trials_that_use_it_and_no_others(tmp_path):
    path, unrelated = tmp_path / "toys.py", tmp_path / "unrelated.py"
    path.write_text(METHOD.format(name="toy_one"))
    unrelated.write_text(METHOD.format(name="toy_two"))
    loaded(path, unrelated)
    before = {trial.method: trial for trial in planned("dense,toy_one,toy_two,scratch[of=toy_one]")}
    path.write_text(METHOD.format(name="toy_one") + "\n# edited\n")
    loaded(path, unrelated)
    after = {trial.method: trial for trial in planned("dense,toy_one,toy_two,scratch[of=toy_one]")}
    changed = {name for name, trial in after.items() if trial.hash != before[name].hash}
    assert changed == {"toy_one", "scratch"}  # and the trial that depends on it
    assert after["toy_one"].defined_by["method"]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    data = json.loads(json.dumps(after["toy_one"].to_json()))
    assert TrialSpec.from_json(data) == after["toy_one"]


def test_a_plugin_that_moved_defines_the_same_trial(tmp_path):
    hashes = []
    for folder in ("here", "there"):
        path = tmp_path / folder / "toys.py"
        path.parent.mkdir()
        path.write_text(METHOD.format(name="toy_one"))
        loaded(path)
        hashes.append(planned("toy_one")[0].hash)
    assert hashes[0] == hashes[1]


def test_a_model_and_a_task_of_a_plugin_name_the_trial_too(tmp_path):
    path = tmp_path / "toy.py"
    path.write_text(TOY)
    loaded(path)
    (trial,) = planned("dense", tasks="toy_task")
    assert trial.defined_by.keys() == {"task", "model"}


def test_modules_next_to_a_plugin_are_covered_and_others_are_not(tmp_path):
    path = tmp_path / "toys.py"
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "deep.py").write_text("from . import deeper")
    (tmp_path / "package" / "deeper.py").write_text("DEEP = 1")
    (tmp_path / "helper.py").write_text("import package.deep, json, numpy, suite.method")
    (tmp_path / "stranger.py").write_text("")
    path.write_text(METHOD.format(name="toy_one") + "\ndef later():\n    import helper\n")
    loaded(path)
    (trial,) = planned("toy_one")
    imports = trial.defined_by["method"]["imports"]
    assert imports.keys() == {"helper.py", "package/__init__.py", "package/deep.py", "package/deeper.py"}
    (tmp_path / "package" / "deeper.py").write_text("DEEP = 2")
    plugin_files._with_imports.cache_clear()
    assert planned("toy_one")[0].hash != trial.hash
    with pytest.raises(UsageError, match=r"'toy_one' is defined by .*toys\.py, which has changed since"):
        trial.check_files()


def test_a_plugin_in_a_checkout_does_not_cover_the_project():
    path = ROOT / "a_plugin_that_is_not_written.py"
    found = plugin_files._with_imports(path, b"import suite.method, methods.sdgp\nfrom tasks import cifar")
    assert "imports" not in found


def test_a_plugin_that_is_edited_while_trials_wait_does_not_run_under_the_old_name(tmp_path):
    path = tmp_path / "toys.py"
    path.write_text(METHOD.format(name="toy_one"))
    loaded(path)
    (trial,) = planned("toy_one", plugins=(str(path),))
    (tmp_path / "trial.json").write_text(json.dumps({"spec": trial.to_json(), "status": "running", "message": ""}))
    path.write_text(METHOD.format(name="toy_one") + "\n# edited\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-P", "-m", "suite.trials.trial", str(tmp_path)], env=environment, check=False)
    record = json.loads((tmp_path / "trial.json").read_text())
    assert record["status"] == "error"
    assert "toys.py, which has changed since this trial was planned" in record["message"]
