"""A probe against the trial that it predicts: its stages, its FLOPs, and the weights that it does not change."""

import dataclasses
import math

import pytest
import torch
from small_trials import spec, train

from suite.method import Method
from suite.prediction.batches import ProbeBatches
from suite.prediction.estimate import predict, setting
from suite.prediction.probe import HOOKS, WALKING_IMAGES, Probe, probe, steady
from suite.registry import register
from suite.runs.stages import StageList

SMALL = {"train_images": 100, "test_images": 40, "batch_size": 16, "eval_batch_size": 32}
CLICKTRAIN = "clicktrain[warmup=0.2,hard_prune=0.6,backend=masked]"
PATIENT = 600.0


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


@pytest.mark.parametrize("method", ["dense", CLICKTRAIN])
def test_stages_and_flops_are_those_of_the_trial(tmp_path, method):
    trial = spec(method, epochs=5, **SMALL)
    found = Probe(trial, tmp_path, 2, PATIENT).run()
    records = train(tmp_path / "trial", trial)
    expected = predict(trial, found)
    assert [stage["epoch"] for stage in found["stages"]] == [stage.epoch for stage in StageList(records).stages()]
    assert expected.epochs == len(records)
    assert expected.steps == sum(record["steps"] for record in records)
    assert expected.flops_dense == pytest.approx(records[-1]["train_flops"]["dense"], rel=1e-9)
    assert expected.flops_executed == pytest.approx(records[-1]["train_flops"]["executed"], rel=1e-9)
    assert expected.memory_bytes == max(record["step_memory_bytes"] for record in records)
    assert expected.payload[0][0] == found["params"] == records[0]["params"]
    assert (expected.is_bound, expected.notes) == (False, ())


@pytest.mark.parametrize("method", ["dense", "prunetrain"])
def test_no_weight_moves_and_the_network_keeps_its_size(tmp_path, method):
    made = Probe(spec(method, epochs=3, **SMALL), tmp_path, 2, PATIENT)
    before = {name: value.clone() for name, value in made.trainer.model.named_parameters()}
    made.run()
    after = dict(made.trainer.model.named_parameters())
    assert before.keys() == after.keys()
    for name, values in before.items():  # a method may set weights to zero
        assert ((values == after[name]) | (after[name] == 0)).all(), name


def test_a_steady_method_is_probed_once_and_predicts_any_number_of_epochs(tmp_path):
    trial = spec("dense", epochs=50, **SMALL)
    found = Probe(trial, tmp_path, 4, PATIENT).run()
    assert found["steady"]
    assert found["epochs"] == 2  # an epoch has six batches, of which three warm up
    longer = spec("dense", epochs=200, **SMALL)
    assert setting(trial, epochs=False) == setting(longer, epochs=False)
    assert setting(trial) != setting(longer)
    assert setting(trial) == setting(spec("dense", seed=3, epochs=50, learning_rate=0.3, **SMALL))
    assert predict(longer, found).train_s == pytest.approx(4 * predict(trial, found).train_s)
    assert predict(longer, found).flops_dense == pytest.approx(4 * predict(trial, found).flops_dense)


def test_evaluations_are_timed_however_seldom_the_recipe_asks_for_one(tmp_path):
    trial = spec("dense", epochs=50, eval_every=20, **SMALL)
    found = Probe(trial, tmp_path, 4, PATIENT).run()
    (split,) = found["evaluation"]
    assert predict(trial, found).eval_s == pytest.approx(3 * split["images"] * split["per_image"])


def test_walking_epochs_run_one_small_step_until_the_cost_changes(tmp_path, monkeypatch):
    made = Probe(spec("counts_hooks", epochs=10, **SMALL), tmp_path, 3, 1000.0)
    # Time for the first epoch, the walk and a change, but not for whole batches in every epoch.
    monkeypatch.setattr(Probe, "_left", lambda self: 1e-6 if self.epochs else PATIENT)
    found = made.run()
    method = made.trainer.hooks.method
    assert not found["steady"]
    # Epoch 4 shows the change, and epoch 5 is measured.
    assert [count == 1 for count in method.batches] == [False, True, True, True, False, *[True] * 5]
    assert method.images.count(WALKING_IMAGES) == 8
    assert [stage["epoch"] for stage in found["stages"]] == [1, 5]


def test_steps_that_are_compiled_for_a_shape_keep_it(tmp_path):
    made = Probe(spec("counts_hooks", **SMALL), tmp_path, 3, PATIENT)
    made._walk_next()
    assert made.train[None].images == WALKING_IMAGES
    made.trainer.recipe = dataclasses.replace(made.trainer.recipe, execution="compile")
    made._walk_next()
    assert made.train[None].images is None


def test_a_probe_without_time_says_how_far_it_came(tmp_path, monkeypatch):
    trial = spec("prunetrain", epochs=9, **SMALL)
    made = Probe(trial, tmp_path, 2, 1000.0)
    monkeypatch.setattr(Probe, "_left", lambda self: 1.0 if self.epochs < 2 else -1.0)
    expected = predict(trial, made.run())
    assert (expected.epochs, expected.probed_epochs) == (9, 2)
    assert any("epoch 2 of 9" in note for note in expected.notes)
    assert expected.is_bound


def test_a_trial_that_cannot_be_built_is_an_error_in_words(tmp_path):
    trial = dataclasses.replace(spec("dense", **SMALL), depends_on={"dense": "dense-missing"})
    found = probe(trial.to_json(), str(tmp_path), 2, 1.0, "cpu")
    assert found == {"error": "this trial depends on dense-missing, which is not done"}


def test_every_hook_that_can_change_a_step_makes_a_method_unsteady():
    assert steady(Method)
    assert steady(Method, (16,))
    assert not steady(Method, (16, 24))
    for hook in HOOKS:
        changed = type("Changed", (Method,), {hook: lambda self, *arguments: None})
        assert not steady(changed)


class Ten:
    num_samples = 100

    def steps_per_epoch(self, batch_size):
        return 100 // batch_size

    def epoch(self, epoch, batch_size):
        for first in range(0, 100, batch_size):
            yield torch.arange(first, first + batch_size), torch.zeros(batch_size)


@pytest.mark.parametrize(("parts", "images", "size"), [(1, None, 10), (4, None, 3), (1, 4, 4), (4, 2, 2)])
def test_a_rank_gets_its_part_of_each_batch(parts, images, size):
    batches = ProbeBatches(Ten(), torch.device("cpu"), parts)
    batches.wanted, batches.images = lambda seconds: len(seconds) < 3, images
    found = list(batches.epoch(0, 10))
    assert [len(part) for part, _ in found] == [size] * 3
    assert batches.size == size
    assert len(batches.seconds) == len(batches.fetching) == 3
    assert batches.steps_per_epoch(10) == 10
    assert all(math.isfinite(seconds) and seconds >= 0 for seconds in batches.seconds)


def test_a_short_split_repeats_its_first_batch_if_asked():
    repeating = ProbeBatches(Ten(), torch.device("cpu"), repeat=True)
    repeating.wanted = lambda seconds: len(seconds) < 3
    assert [int(images[0]) for images, _ in repeating.epoch(0, 100)] == [0, 0, 0]
    ending = ProbeBatches(Ten(), torch.device("cpu"))
    ending.wanted = lambda seconds: len(seconds) < 3
    assert len(list(ending.epoch(0, 100))) == 1
