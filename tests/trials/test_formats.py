"""Records of the former format: they are refused with the command that converts them, which loses nothing."""

import dataclasses
import json
import shutil

import pytest
from small_trials import spec, write_export

from suite.choices import ModelChoice
from suite.cli import main as cli
from suite.trials.folder import packed
from tools import rename_trials

FIRST, SECOND = (
    dataclasses.replace(trial, model_parameters=ModelChoice.read(trial.model).parameters())
    for trial in (spec("dense"), spec("sdgp"))
)
SECOND = dataclasses.replace(SECOND, depends_on={"dense": FIRST.trial_id})


@pytest.fixture
def present(tmp_path):
    """Exported folder of two trials, of which one depends on the other."""
    for trial in (FIRST, SECOND):
        write_export(tmp_path / "present" / "trials" / trial.trial_id, trial)
    (tmp_path / "present" / "suite.json").write_text(json.dumps({"names": [FIRST.trial_id, SECOND.trial_id]}))
    return tmp_path / "present"


@pytest.fixture
def former(present, tmp_path):
    """The same trials as the former version would have written them."""
    out, ids = tmp_path / "former", {}
    (out / "trials").mkdir(parents=True)
    for trial in (FIRST, SECOND):
        record = json.loads((present / "trials" / trial.trial_id / "trial.json").read_text())
        old = record["spec"]
        del old["task_parameters"], old["recipe"]["drop_last"], record["format"], record["sha256"]
        old["depends_on"] = {text: ids[one] for text, one in old["depends_on"].items()}
        old["hash"] = rename_trials.old_hash(old)
        ids[trial.trial_id] = record["trial_id"] = f"{trial.trial_id[:-8]}{old['hash'][:8]}"
        record["sha256"] = packed.digest(record)
        shutil.copytree(present / "trials" / trial.trial_id, out / "trials" / record["trial_id"])
        (out / "trials" / record["trial_id"] / "trial.json").write_text(json.dumps(record))
    (out / "suite.json").write_text(json.dumps({"names": [*ids.values()]}))
    assert not {*ids} & {*ids.values()}
    return out


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock" and path.name != ".lock"]
    found = {path.relative_to(folder): path.read_bytes() for path in files}
    return {name: json.loads(content) if name.suffix == ".json" else content for name, content in found.items()}


def convert(old, new):
    return rename_trials.main([str(old), str(new)])


def test_a_converted_folder_is_what_this_version_writes(former, present, tmp_path):
    before = contents(former)
    assert convert(former, tmp_path / "new") == 0
    assert contents(tmp_path / "new") == contents(present)
    assert contents(former) == before
    assert convert(tmp_path / "new", tmp_path / "again") == 2  # it has format 2


@pytest.mark.parametrize("verb", ["report", "time", "export", "compare", "merge"])
def test_verbs_refuse_a_former_folder_and_change_nothing(former, present, tmp_path, capsys, verb):
    before, new = contents(former), str(tmp_path / "new")
    more = {"export": [new], "compare": [str(present)], "merge": [str(present), "-o", new]}.get(verb, [])
    assert cli.main([verb, str(former), *more]) == 2
    assert "python tools/rename_trials.py OLD NEW writes a copy of the folder in it" in capsys.readouterr().err
    assert contents(former) == before
    assert not (tmp_path / "new").exists()


def edit(record):
    record["result"] = {"test_accuracy": 0.999}


def edit_with_checksum(record):
    record["spec"]["seed"] = 5
    del record["sha256"]
    record["sha256"] = packed.digest(record)


@pytest.mark.parametrize("change", [edit, edit_with_checksum, dict.clear])
def test_a_changed_record_is_not_made_valid(former, tmp_path, capsys, change):
    path = max((former / "trials").iterdir()) / "trial.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    assert convert(former, tmp_path / "new") == 2
    assert f"{path} cannot be converted" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_missing_dependency_and_no_folder_are_one_line(former, tmp_path, capsys):
    shutil.rmtree(min((former / "trials").iterdir()))
    assert convert(former, tmp_path / "new") == 2
    assert "depends on a trial that the folder does not have" in capsys.readouterr().err
    assert convert(tmp_path / "nothing", tmp_path / "new") == 2
    assert [path.name for path in tmp_path.iterdir() if "new" in path.name] == []
