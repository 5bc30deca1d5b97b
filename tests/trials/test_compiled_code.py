"""Where trials that run `torch.compile` keep its code."""

import os

import pytest
from small_trials import spec

from suite.errors import UsageError
from suite.trials.building import build_trainer, load_splits

SMALL = {"train_images": 96, "test_images": 32, "batch_size": 16, "epochs": 1}


@pytest.mark.parametrize("execution", ["eager", "compile"])
def test_a_trial_refuses_a_folder_that_others_can_write(tmp_path, monkeypatch, execution):
    monkeypatch.setenv("PDT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    own = spec("dense", **SMALL, execution=execution)
    build_trainer(own, tmp_path, load_splits(own))
    expected = str(tmp_path / "cache" / "inductor") if execution == "compile" else ""
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == expected
    if execution == "compile":
        (tmp_path / "cache").chmod(0o777)
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
        with pytest.raises(UsageError, match=r"^recipe.execution=compile: the cache .*/cache is not used: others can"):
            build_trainer(own, tmp_path, load_splits(own))
