"""Tests that compiled steps equal eager steps bit for bit, with a backend that keeps torch's own operations."""

import copy
import dataclasses
import logging
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from small_methods import (
    ChannelTopK,
    Decays,
    HashedChannels,
    Mixup,
    Nothing,
    OwnBackend,
    RandomChannels,
    Replans,
    Shrinks,
    SkipsOdd,
    WeightMask,
)
from small_training import RECIPE, Checkpoints, SmallBatches, assert_same_weights, plain_net, small_trainer
from test_trainer import trained
from torch import nn

from methods.freezeout import FreezeOut
from suite.engine.training import steps
from suite.errors import UsageError
from suite.method import Method, OpPlan, ReconfigPlan

COMPILED = dataclasses.replace(RECIPE, execution="compile")
ONE_EPOCH = dataclasses.replace(RECIPE, epochs=1)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(steps, "BACKEND", "aot_eager")


@pytest.fixture
def few_graphs():
    """Let torch compile two graphs of a function, and no third one."""
    with torch._dynamo.config.patch(recompile_limit=2):
        yield


def fitted(method, recipe, model=None, **options):
    records, states = [], Checkpoints()
    trainer = trainer_of(method, recipe, model, on_epoch=records.append, on_checkpoint=states.keep, **options)
    trainer.fit()
    return trainer, [trained(record) for record in records], states


def trainer_of(method, recipe, model=None, **options):
    if model is None and method is not Shrinks:
        model = plain_net()
    return small_trainer(method(), recipe, model, **options)


def warnings_of_ours(caplog):
    """torch's own tracing is in the log of a test too."""
    return [record.message for record in caplog.records if record.name.startswith("suite")]


FAST = [(Shrinks, torch.float32), (partial(FreezeOut, start=0.4, power=1), torch.float32)]
FAST += [(method, torch.float16) for method in (RandomChannels, Decays)]  # a plan and a term under a loss scale
SLOW = [Nothing, OwnBackend, Mixup, HashedChannels, ChannelTopK, SkipsOdd, Replans]
CASES = [*FAST, *(pytest.param(method, torch.float16, marks=pytest.mark.slow) for method in SLOW)]


@pytest.mark.parametrize(("method", "dtype"), CASES)
def test_compiled_training_is_eager_training_bit_for_bit(method, dtype, caplog):
    recipe = dataclasses.replace(RECIPE, micro_batches=2, clip_norm=1.0)
    eager, expected, _ = fitted(method, recipe, dtype=dtype)
    recipe = dataclasses.replace(recipe, execution="compile")
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    compiled, records, states = fitted(method, recipe, dtype=dtype)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > graphs
    assert records == expected
    assert list(compiled.model.state_dict()) == list(eager.model.state_dict())
    assert_same_weights(eager, compiled)
    assert compiled.ledger.to_csv(3) == eager.ledger.to_csv(3)
    assert not warnings_of_ours(caplog)
    if method is not Shrinks:
        return
    resumed = trainer_of(method, recipe, dtype=dtype)
    resumed.load_state_dict(states[1])
    resumed.fit()
    assert_same_weights(eager, resumed)


def test_a_weight_transform_with_a_product_trains_alike_compiled_and_under_autocast():
    class Turns(Method):
        def setup(self, ctx):
            self.turn = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0))).Q

        def plan(self, name, layer):
            return OpPlan(weight_forward=lambda weight, site: weight @ self.turn) if name == "8" else None

    eager, expected, _ = fitted(Turns, ONE_EPOCH, dtype=torch.bfloat16)
    compiled, records, _ = fitted(Turns, dataclasses.replace(ONE_EPOCH, execution="compile"), dtype=torch.bfloat16)
    assert records == expected
    assert_same_weights(eager, compiled)


def test_a_backend_that_returns_another_memory_format_trains_alike():
    """A graph is compiled for one format: rounding differs where a mean then runs in another order."""
    eager, expected, _ = fitted(WeightMask, ONE_EPOCH)
    compiled, records, _ = fitted(WeightMask, dataclasses.replace(ONE_EPOCH, execution="compile"))
    assert [record["train_flops"] for record in records] == [record["train_flops"] for record in expected]
    assert expected[-1]["train_flops"]["executed"] < expected[-1]["train_flops"]["current"]
    for name, tensor in eager.model.state_dict().items():
        torch.testing.assert_close(compiled.model.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


def test_preparation_changes_nothing_that_is_trained():
    with_dropout = nn.Sequential(*plain_net()[:-1], nn.Dropout(0.5), nn.Linear(8, 4))
    trainer = trainer_of(RandomChannels, COMPILED, with_dropout)
    trainer.model.train()
    images, labels = next(iter(SmallBatches(64, seed=1).epoch(0, 16)))
    before = copy.deepcopy(trainer.model.state_dict())
    random = torch.get_rng_state()
    assert not trainer.step.is_ready(images, labels)
    trainer.step.prepare(images, labels)
    assert trainer.step.is_ready(images, labels)
    assert not trainer.step.is_ready(images[:8], labels[:8])
    assert torch.equal(torch.get_rng_state(), random)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    assert all(not layer.meter.calls for layer in trainer.runner.planned_layers)
    assert trainer.ctx.step == 0


def test_compilation_is_in_a_time_of_its_own(monkeypatch):
    """Only a preparation takes time here, by a clock that nothing else advances."""
    now = [0.0]

    def slow(self, images, labels):
        now[0] += 1.0
        self._prepared.add(self._depends_on(images, labels))

    monkeypatch.setattr("suite.engine.cost.clock.time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(steps.CompiledStep, "prepare", slow)
    for method, times in ((Shrinks, 3), (Replans, 2)):
        trainer, records, _ = fitted(method, COMPILED)
        assert trainer.clock.seconds["compile"] == times, method
        assert trainer.clock.training == 0, method
        assert records


def test_compiling_within_the_time_of_training_is_told(caplog):
    trainer = trainer_of(Nothing, COMPILED, one_layer())
    trainer.step.is_ready = lambda images, labels: trainer.step._prepared is not None
    batches = list(SmallBatches(64, seed=1).epoch(0, 16))
    trainer.step.prepare(*batches[0])
    with caplog.at_level(logging.WARNING):
        trainer.step.gradients(*batches[0])
        assert not warnings_of_ours(caplog)
        trainer.step.gradients(batches[0][0][:8], batches[0][1][:8])
    assert "step 1 was compiled again during training" in warnings_of_ours(caplog)[0]


def test_a_model_that_is_no_single_graph_is_an_error():
    class Breaks(nn.Module):
        def forward(self, images):
            torch._dynamo.graph_break()
            return images

    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        fitted(Nothing, COMPILED, model=nn.Sequential(Breaks(), one_layer()))


def one_layer():
    """A network that compiles fast."""
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4))


@pytest.mark.usefixtures("few_graphs")
def test_more_graphs_than_torch_compiles_is_an_error_and_no_eager_step():
    trainer = trainer_of(Nothing, COMPILED, one_layer())
    images, labels = next(iter(SmallBatches(64, seed=1).epoch(0, 16)))

    def prepare_many():
        for size in range(2, 6):
            trainer.step.prepare(images[:size], labels[:size])

    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        prepare_many()


@pytest.mark.usefixtures("few_graphs")
def test_any_number_of_reconfigurations_is_compiled():
    class Grows(Method):
        def reconfigure(self, ctx):
            return ReconfigPlan(batch_size=4 * (ctx.epochs_done + 1))

    recipe = dataclasses.replace(COMPILED, batch_size=4)
    _, records, _ = fitted(Grows, recipe, model=one_layer())
    assert [record["batch_size"] for record in records] == [4, 8, 12]


def test_compilation_without_a_compiler_is_refused(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(UsageError, match=r"no C\+\+ compiler is found \(no-such-compiler\); take eager"):
        small_trainer(Nothing(), COMPILED)


def one_convolution():
    return nn.Sequential(*(plain_net()[index] for index in (0, 1, 2, 6, 7, 8)))


@pytest.mark.slow
def test_inductor_draws_new_masks_and_trains_like_eager(monkeypatch):
    monkeypatch.setattr(steps, "BACKEND", "inductor")
    eager, compiled = (
        small_trainer(RandomChannels(), dataclasses.replace(ONE_EPOCH, execution=execution), one_convolution())
        for execution in ("eager", "compile")
    )
    eager.fit()
    compiled.fit()
    for name, tensor in eager.model.state_dict().items():
        torch.testing.assert_close(compiled.model.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)
