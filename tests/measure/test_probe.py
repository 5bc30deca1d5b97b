"""A probe against the trial that it predicts: its stages, its FLOPs, and the weights that it does not change."""

import dataclasses
import math
from pathlib import Path

import image_trials
import pytest
from small_trials import flushed, spec, train
from tiny_net import TINY

from suite.measure import probe as module
from suite.measure.probe import WALKING_IMAGES, Probe, probe
from suite.method import Method
from suite.registry import register
from suite.trials.stages import StageList

SMALL = {"model": TINY, "train_images": 100, "test_images": 40, "batch_size": 16, "eval_batch_size": 32}
CLICKTRAIN = "clicktrain[warmup=0.2,hard_prune=0.6,backend=masked]"
GROWING = {"train_sizes": (16, 32), "size_milestones": (0.5,)}


@register("method", "counts_hooks")
class CountsHooks(Method):
    """Counts what it is asked in each epoch, and costs more from the fourth of ten epochs on."""

    def setup(self, ctx):
        self.batches, self.images = [0] * 10, []

    def transform_batch(self, images, labels, ctx):
        self.batches[ctx.epochs_done] += 1
        self.images.append(len(images))
        return images, labels

    def overhead(self, name, samples, ctx):
        return 1e6 if ctx.epochs_done >= 3 else 0.0


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(module, "STEPS", 3)


def counted(records):
    """Return the FLOPs of training that a trial has counted."""
    return [pytest.approx(records[-1]["train_flops"][name], rel=1e-9) for name in ("dense", "executed")]


@pytest.mark.parametrize("method", ["dense", CLICKTRAIN, "freezeout[start=0.4,power=1]"])
def test_stages_and_flops_are_those_of_the_trial(tmp_path, method):
    trial = spec(method, epochs=5, **SMALL)
    found = Probe(trial, tmp_path).run()
    records = train(tmp_path / "trial", trial)
    assert [stage["epoch"] for stage in found["stages"]] == [stage.epoch for stage in StageList(records).stages()]
    assert found["epochs"] == len(records)
    assert found["steps"] == sum(record["steps"] for record in records)
    assert [found["flops_dense"], found["flops_executed"]] == counted(records)
    assert found["memory_bytes"] == max(record["step_memory_bytes"] for record in records)
    assert (found["shrinks"], found["late"]) == (False, False)


@pytest.mark.parametrize("method", ["dense", "prunetrain"])
def test_no_weight_moves_and_the_network_keeps_its_size(tmp_path, method):
    made = Probe(spec(method, epochs=3, **SMALL), tmp_path)
    before = {name: value.clone() for name, value in made.trainer.model.named_parameters()}
    made.run()
    after = dict(made.trainer.model.named_parameters())
    assert before.keys() == after.keys()
    for name, values in before.items():  # a method may set weights to zero
        assert ((values == after[name]) | (after[name] == 0)).all(), name


def test_the_time_is_that_of_steps_first_batches_and_reconfigurations(tmp_path):
    made = Probe(spec("prunetrain", epochs=2, **{**SMALL, "train_images": 104}, drop_last=False), tmp_path)
    found = made.run()
    (stage,) = found["stages"]
    assert (found["steps"], stage["steps"], stage["timed"]) == (14, 13.0, 3)  # half of a batch costs half of a step
    spent = 13 * stage["step_s"] + 2 * stage["fetch_s"] + made.trainer.clock.seconds["reconfigure"]
    assert found["train_s"] == pytest.approx(spent)
    assert found["shrinks"]


def test_a_batch_of_all_images_is_a_whole_step(tmp_path):
    trial = spec("dense", **{**SMALL, "batch_size": 256}, drop_last=False)
    found = Probe(trial, tmp_path).run()
    records = train(tmp_path / "trial", trial)
    assert [found["flops_dense"], found["flops_executed"]] == counted(records)


def test_a_steady_method_visits_one_epoch_of_each_phase(tmp_path):
    found = [Probe(spec("dense", epochs=epochs, **SMALL), tmp_path).run() for epochs in (50, 200)]
    assert [one["visited"] for one in found] == [1, 1]
    assert found[1]["flops_dense"] == pytest.approx(4 * found[0]["flops_dense"])
    assert [stage["epochs"] for one in found for stage in one["stages"]] == [50, 200]


def test_evaluations_are_timed_however_seldom_the_recipe_asks_for_one(tmp_path, monkeypatch):
    monkeypatch.setattr(Probe, "_evaluation_s", lambda self, split: split.num_samples / 100)
    found = Probe(spec("dense", epochs=50, eval_every=20, **SMALL), tmp_path).run()
    assert found["eval_s"] == pytest.approx(3 * 0.4)


def test_an_evaluation_is_its_first_batches_times_their_share(tmp_path, monkeypatch):
    made, sizes = Probe(spec("dense", **{**SMALL, "test_images": 40, "eval_batch_size": 4}), tmp_path), []
    monkeypatch.setattr(made.trainer.evaluation, "sums", lambda images, *_: sizes.append(len(images)))
    monkeypatch.setattr(module, "seconds_of", lambda call, device: call() or 3.0)
    assert made._evaluation_s(made.trainer.splits.test) == pytest.approx(10.0)
    assert sizes == [4] * 6


def test_each_epoch_runs_small_steps_and_a_change_is_measured_at_once(tmp_path):
    made = Probe(spec("counts_hooks", epochs=10, **SMALL), tmp_path)
    found = made.run()
    method = made.trainer.runner.method
    assert [count == 2 for count in method.batches] == [False, True, True, False, *[True] * 6]
    assert method.images.count(WALKING_IMAGES) == 20
    assert [stage["epoch"] for stage in found["stages"]] == [1, 4]
    assert [stage["epochs"] for stage in found["stages"]] == [3, 7]


def test_a_probe_without_time_says_how_far_it_came(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WALK_S", -1.0)
    found = Probe(spec("prunetrain", epochs=9, **SMALL), tmp_path).run()
    assert (found["epochs"], found["visited"], found["late"]) == (9, 1, True)


def test_a_trial_that_cannot_be_built_is_an_error_in_words(tmp_path):
    trial = dataclasses.replace(spec("dense", **SMALL), depends_on={"dense": "dense-missing"})
    found = probe(trial.to_json(), str(tmp_path))
    assert found == {"error": "this trial depends on dense-missing, which is not done"}


@pytest.mark.slow
def test_a_trial_of_several_processes_is_measured_in_as_many(tmp_path):
    changed = {**SMALL, "model": "resnet9[width=0.0625]", "batch_size": 17}  # other processes know only our own models
    trial = dataclasses.replace(flushed(CLICKTRAIN, epochs=5, **changed), processes=2)
    found = probe(trial.to_json(), str(tmp_path))
    alone = probe(dataclasses.replace(trial, processes=1).to_json(), str(tmp_path))
    names = ("epochs", "visited", "steps", "flops_dense", "flops_executed")
    assert [found[name] for name in names] == [pytest.approx(alone[name]) for name in names]
    assert [stage["epoch"] for stage in found["stages"]] == [stage["epoch"] for stage in alone["stages"]]
    wrong = dataclasses.replace(trial, depends_on={"dense": "dense-missing"})
    found = probe(wrong.to_json(), str(tmp_path))
    assert found["error"].endswith("this trial depends on dense-missing, which is not done")


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    """A folder of images, and the FLOPs that a dense training on it has counted."""
    folder = tmp_path_factory.mktemp("images")
    image_trials.write_images(folder / "pets", count=12)
    return folder / "pets", counted(train(folder / "trial", images(folder / "pets", "dense")))


def images(folder: Path, method: str):
    return image_trials.spec(folder, method, TINY, **{"epochs": 4, **GROWING})


@pytest.mark.parametrize(("method", "seconds"), [
    ("dense", -1.0), ("dense", math.inf), ("sdgp[backend=masked]", -1.0), ("prunetrain", math.inf),
])  # fmt: skip
def test_flops_are_those_of_each_epochs_size_even_without_time(tmp_path, monkeypatch, pets, method, seconds):
    monkeypatch.setattr(module, "WALK_S", seconds)
    folder, flops = pets
    found = Probe(images(folder, method), tmp_path).run()
    assert [found["flops_dense"], found["flops_executed"]] == flops
    small, large = (stage["flops"]["dense"] for stage in found["stages"])
    assert 3.5 * small < large < 4 * small + 1
    assert [stage["epoch"] for stage in found["stages"]] == [1, 3]
