"""`load_model` refuses files that are damaged or not a model of this suite in one line, whatever they contain."""

import contextlib
import io
import pickle
import zipfile

import pytest
import torch
from torch import nn

from suite.choices import build_model
from suite.engine.network import model_files
from suite.errors import UsageError

NAME = "resnet9[width=0.0625]"
SHAPE = (1, 16, 16)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.pt"
    model = build_model(NAME, SHAPE, 10)
    model_files.save_model(path, model, name=NAME, num_classes=10, input_shape=SHAPE, reconfigurations=[])
    return path


def refused(path):
    """Assert that a file is refused in one line or equals the saved one; return whether it is refused."""
    try:
        model_files.load_model(path)
    except UsageError as error:
        line = str(error)
    else:
        return False
    assert "\n" not in line
    assert str(path) in line
    return True


def test_a_damaged_file_is_refused(model_file, tmp_path):
    path, whole = tmp_path / "model.pt", model_file.read_bytes()
    middle = len(whole) // 2
    for content in (whole[:-1], whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]):
        path.write_bytes(content)
        assert refused(path)


class Raises:
    """An object that a foreign program may have pickled."""

    def __reduce__(self):
        return (eval, ("1 / 0",))


def saved(content):
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def zipped(compression=zipfile.ZIP_STORED, **members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return file.getvalue()


def architecture(**changes):
    known = {"model": NAME, "num_classes": 10, "input_shape": list(SHAPE), "reconfigurations": []}
    return {**known, **changes}


def claimed(tensors=None, **changes):
    """Write a file with a correct checksum and content that another program may have written."""
    tensors = {} if tensors is None else tensors
    try:
        digest = model_files._checksum(tensors)
    except AttributeError:
        digest = ""
    return saved({"architecture": architecture(**changes), "tensors": tensors, "sha256": digest})


FOREIGN = {
    "empty": b"",
    "code": pickle.dumps(Raises()),
    "zip of a pickle": zipped(archive__data__pkl=pickle.dumps(Raises()), archive__version="3"),
    "zip bomb": zipped(zipfile.ZIP_DEFLATED, archive__data="0" * 10**6),
    "tensor": saved(torch.zeros(3)),
    "module": saved(nn.Linear(2, 2)),
    "other dict": saved({"architecture": 3, "tensors": 4, "sha256": 5}),
    "no tensors": claimed(),
    "numbers for tensors": claimed({"x": 1}),
    "sparse": saved({"architecture": architecture(), "tensors": {"x": torch.eye(2).to_sparse()}, "sha256": ""}),
    "no such model": claimed(model="resnet10"),
    "bad brackets": claimed(model="resnet9[[["),
    "a huge shape": claimed(input_shape=[3, 2**40, 2**40]),
    "a shape of text": claimed(input_shape=["a", "b", "c"]),
    "many classes": claimed(num_classes=10**30),
    "a plan for another network": claimed(reconfigurations=[{"kept": {"nothing": [1]}}]),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files(tmp_path, name):
    path = tmp_path / "model.pt"
    path.write_bytes(FOREIGN[name])
    draws = torch.get_rng_state()
    assert refused(path)
    with contextlib.suppress(UsageError):  # the plans can be read even if they do not fit the model
        assert isinstance(model_files.read_reconfigurations(path), list)
    assert torch.equal(draws, torch.get_rng_state())


def test_no_file(tmp_path):
    for path in (tmp_path, tmp_path / "nothing.pt"):
        with pytest.raises(UsageError, match="no such file"):
            model_files.load_model(path)
