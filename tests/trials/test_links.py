"""Symbolic links in place of output files are refused with one line, and their targets are not changed."""

import os

import pytest
from test_records import finished, spec

from suite import files
from suite.errors import UsageError
from suite.trials.folder.store import FOLDERS, WRITTEN, Store


@pytest.fixture
def outside(tmp_path):
    """Folder with a file that does not belong to the suite."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    return folder


def link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("name", [*FOLDERS, *WRITTEN])
def test_links_in_the_folder_are_refused_before_anything_is_written(tmp_path, outside, name):
    out = tmp_path / "out"
    finished(out, spec(0))
    if name == "trials":
        (out / "trials").rename(tmp_path / "moved")
    (out / "suite.json").write_text('{"commands": []}')
    (out / name).unlink(missing_ok=True)
    target = outside if name in FOLDERS else outside / "thesis.tex"
    for leads_to in (target, tmp_path / "nothing"):
        link(out / name, leads_to)
        for use in (Store(out).check, Store(out).lock().__enter__):
            with pytest.raises(UsageError, match=rf"out/{name} is a symbolic link"):
                use()
        (out / name).unlink()
    assert [path.name for path in outside.iterdir()] == ["thesis.tex"]
    assert (outside / "thesis.tex").read_text() == "mine"
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("only", ["missing", "all"])
def test_a_link_in_place_of_a_trial_is_refused_before_any_is_deleted(tmp_path, outside, only):
    out = tmp_path / "out"
    kept = finished(out, spec(0))
    link(out / "trials" / spec(1).trial_id, outside)
    with pytest.raises(UsageError, match="is a symbolic link"):
        Store(out).choose([spec(0), spec(1)], only)
    assert (kept / "model.pt").is_file()
    assert (outside / "thesis.tex").read_text() == "mine"


def test_a_finished_trial_may_be_read_through_a_link(tmp_path):
    elsewhere = finished(tmp_path / "elsewhere", spec(0))
    link(tmp_path / "out" / "trials" / spec(0).trial_id, elsewhere)
    assert Store(tmp_path / "out").choose([spec(0)], "missing") == []


def test_the_folder_itself_may_be_a_link_to_a_folder(tmp_path):
    (tmp_path / "disk").mkdir()
    link(tmp_path / "out", tmp_path / "disk")
    store = Store(tmp_path / "out")
    store.check()
    with store.lock():
        assert (tmp_path / "disk" / ".lock").is_file()
    link(tmp_path / "to-nothing", tmp_path / "nothing")
    with pytest.raises(UsageError, match="is a symbolic link to nothing"):
        Store(tmp_path / "to-nothing").check()


@pytest.mark.parametrize("use", [lambda path: files.write(path, "x"), lambda path: files.append(path, "x")])
def test_files_are_not_written_through_links(tmp_path, outside, use):
    link(tmp_path / "x", outside / "thesis.tex")
    with pytest.raises(UsageError, match="x is a symbolic link"):
        use(tmp_path / "x")
    assert (outside / "thesis.tex").read_text() == "mine"


def test_special_files_in_place_of_files_and_folders_are_refused(tmp_path):
    (tmp_path / "suite.json").write_text("{}")
    (tmp_path / "results.csv").mkdir()
    with pytest.raises(UsageError, match=r"results\.csv must be a file"):
        Store(tmp_path).check()
    (tmp_path / "results.csv").rmdir()
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(UsageError, match=r"\.lock must be a file"):
        Store(tmp_path).lock().__enter__()
    (tmp_path / ".lock").unlink()
    (tmp_path / "figures").write_text("")
    with pytest.raises(UsageError, match="figures must be a folder"):
        Store(tmp_path).check()
