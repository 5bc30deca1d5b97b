"""A probe against the trial that it predicts: its stages, its FLOPs, and the weights that it does not change."""

import dataclasses
import math
import time
from types import SimpleNamespace

import pytest
import torch
from small_trials import spec, train

from suite.engine.training.data_parallel import Batch
from suite.measure.prediction.estimate import predict, setting
from suite.measure.prediction.probe import HOOKS, WALKING_IMAGES, Probe, probe, steady
from suite.method import Method
from suite.registry import register
from suite.trials.stages import StageList

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
    method = made.trainer.runner.method
    assert not found["steady"]
    # Epoch 4 shows the change, and epoch 5 is measured.
    assert [count == 1 for count in method.batches] == [False, True, True, True, False, *[True] * 5]
    assert method.images.count(WALKING_IMAGES) == 8
    assert [stage["epoch"] for stage in found["stages"]] == [1, 5]


def test_steps_that_are_compiled_for_a_shape_keep_it(tmp_path):
    made = Probe(spec("counts_hooks", **SMALL), tmp_path, 3, PATIENT)
    made.trainer.begin_epoch()
    made.walks = True
    assert made._run_steps().images == WALKING_IMAGES
    made.trainer.recipe = dataclasses.replace(made.trainer.recipe, execution="compile")
    assert made._run_steps().images == SMALL["batch_size"]


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

    def epoch(self, epoch, batch_size):
        yield from ((torch.zeros(batch_size, 1), torch.zeros(batch_size)) for _ in range(100 // batch_size))


class Steps:
    """Stands for a trainer whose steps take no time."""

    steps_per_epoch = 10
    device = torch.device("cpu")
    recipe = SimpleNamespace(execution="eager", eval_batch_size=50)
    ledger = SimpleNamespace(step_cost=dict)
    model = torch.nn.Identity()
    setting_of_step = dict

    def __init__(self):
        self.sizes, self.evaluation = [], SimpleNamespace(logits_of=lambda: None, sums=self.sums)

    def batches(self):
        return (Batch(*batch, 10) for batch in Ten().epoch(0, 10))

    def train_step(self, batch):
        assert len(batch.images) == len(batch.labels) == batch.size
        self.sizes.append(batch.size)

    def sums(self, images, labels, logits_of):
        self.sizes.append(len(images))


def stand_in(ranks, walks=False):
    made = Probe.__new__(Probe)
    made.trainer, made.trial = Steps(), SimpleNamespace(processes=ranks)
    made.epochs, made.walks, made.warm_ups, made.most, made.steps = 1, walks, 1, math.inf, 2
    made.params, made.limit_s, made.began = 0, PATIENT, time.perf_counter()
    return made


@pytest.mark.parametrize(("ranks", "walks", "sizes"), [(1, False, [10] * 3), (4, False, [3] * 3), (1, True, [4])])
def test_a_rank_gets_its_part_of_each_batch(ranks, walks, sizes):
    made = stand_in(ranks, walks)
    stage = made._run_steps()
    assert made.trainer.sizes == sizes
    assert (stage.images, stage.total_steps, len(stage.fetching)) == (sizes[0], 10, len(sizes))
    assert len(stage.seconds) == max(1, len(sizes) - 1)
    assert all(math.isfinite(seconds) and seconds >= 0 for seconds in stage.seconds)


def test_a_short_split_is_evaluated_several_times():
    made = stand_in(ranks=2)
    assert made._time_evaluation(Ten())["images"] == 100
    assert made.trainer.sizes == [25] * 4  # two batches an epoch
