"""Replayed steps against eager ones: on a stand-in for CUDA graphs here, on a device in `test_gpu.py`."""

import dataclasses

import pytest
import torch
from small_methods import (
    Decays,
    HashedChannels,
    Mixup,
    Nothing,
    RandomChannels,
    Replans,
    ReplayedTopK,
    Shrinks,
    SkipsOdd,
)
from small_training import RECIPE, assert_same_weights, small_trainer
from taped_graph import install
from test_trainer import trained
from torch.utils._python_dispatch import TorchDispatchMode

from suite.engine.training.cuda_graph import KeyBuffer
from suite.engine.training.execution import check_execution
from suite.errors import UsageError
from suite.plan import random_key
from suite.trials.planning import plan
from suite.trials.spec import SuiteSpec

GRAPH = dataclasses.replace(RECIPE, execution="cuda_graph")


@pytest.fixture
def taped(monkeypatch):
    install(monkeypatch)


def fitted(method, recipe, **options):
    records = []
    trainer = small_trainer(method(), recipe, on_epoch=records.append, **options)
    trainer.fit()
    return trainer, [trained(record) for record in records]


CASES = [(method, torch.float32) for method in (Mixup, HashedChannels, ReplayedTopK)] + [(SkipsOdd, torch.float16)]


@pytest.mark.parametrize(("method", "dtype"), CASES)
def test_replayed_steps_are_eager_ones_bit_for_bit(taped, method, dtype):
    whole = dataclasses.replace(RECIPE, epochs=2, micro_batches=2, clip_norm=1.0)
    eager, expected = fitted(method, whole, dtype=dtype)
    replayed, records = fitted(method, dataclasses.replace(whole, execution="cuda_graph"), dtype=dtype)
    assert records == expected
    assert_same_weights(eager, replayed)
    assert replayed.ledger.to_csv(2) == eager.ledger.to_csv(2)
    assert replayed.step._graph.replays == 8  # two epochs of four steps, one capture
    assert replayed.clock.seconds["compile"] > 0


def test_a_changed_network_and_new_plans_are_captured_anew(taped):
    for method in (Shrinks, Replans):
        eager, expected = fitted(method, RECIPE)
        replayed, records = fitted(method, GRAPH)
        assert records == expected
        assert_same_weights(eager, replayed)


def test_a_parameter_that_moved_is_captured_where_it_lies(taped):
    class Moves(Nothing):
        def on_epoch_end(self, ctx):
            ctx.model[0].weight.data = ctx.model[0].weight.data.clone()

    recipe = dataclasses.replace(RECIPE, epochs=2)
    _, expected = fitted(Moves, recipe)
    replayed, records = fitted(Moves, dataclasses.replace(recipe, execution="cuda_graph"))
    assert records == expected
    assert replayed.step._graph.replays == 4  # a graph an epoch


def test_keys_of_a_replay_are_those_of_eager_for_every_site_and_step():
    buffer = KeyBuffer(6, seed=7, device=torch.device("cpu"))
    places = [(name, operand, slot) for name in ("a", "b") for operand in ("grad_dgrad", "grad_wgrad") for slot in (0,)]
    views = {place: buffer.of(*place) for place in [*places, ("a", "grad_dgrad", 1)]}
    seen = set()
    for step in (0, 1, 41):
        buffer.fill(step)
        for (name, operand, slot), view in views.items():
            assert (view.shape, view.dtype) == ((), torch.int64)
            assert view.item() == random_key(7, step, slot, operand, name)
            assert buffer.of(name, operand, slot).data_ptr() == view.data_ptr()
            seen.add(view.item())
    assert len(seen) == 15
    buffer.of("c", "grad_dgrad", 0)
    with pytest.raises(IndexError):
        buffer.of("d", "grad_dgrad", 0)


def test_keys_of_a_copy_that_is_still_queued_are_not_overwritten():
    class Queue(TorchDispatchMode):
        """Notes copies that need not be waited for, and leaves them undone."""

        def __init__(self):
            super().__init__()
            self.sources = []

        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            if function is torch.ops.aten.copy_.default and arguments[2:] == (True,):
                self.sources.append(arguments[1])
                return arguments[0]
            return function(*arguments, **(keywords or {}))

    buffer = KeyBuffer(1, seed=7, device=torch.device("cpu"))
    buffer.of("a", "grad_dgrad", 0)
    with Queue() as queue:
        for step in range(3):
            buffer.fill(step)
    assert [keys.tolist() for keys in queue.sources] == [
        [random_key(7, step, 0, "grad_dgrad", "a")] for step in range(3)
    ]


def test_hooks_around_the_optimizer_see_the_loss_of_the_replayed_step(taped):
    seen = []

    class Looks(Nothing):
        def before_optimizer_step(self, ctx):
            seen.append(ctx.task_loss.item())

    for recipe in (RECIPE, GRAPH):
        fitted(Looks, dataclasses.replace(recipe, epochs=1))
    assert seen[:4] == seen[4:]
    assert len(set(seen)) == 4


def test_memory_that_a_graph_keeps_counts(taped, monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 2)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 3)
    assert small_trainer(Nothing(), RECIPE).step.peak_memory() == 2
    assert small_trainer(Nothing(), GRAPH).step.peak_memory() == 3


def test_a_number_of_python_is_refused_while_a_step_is_captured(taped):
    with pytest.raises(RuntimeError, match=r"grad_dgrad of '8'.*cannot use site\.key.*site\.kernel_seed"):
        fitted(RandomChannels, GRAPH)


def test_graphs_are_refused_on_the_cpu_and_for_methods_that_do_not_allow_them():
    with pytest.raises(UsageError, match=r"needs a CUDA device, not 'cpu'; take eager or compile"):
        small_trainer(HashedChannels(), GRAPH)
    check_execution("cuda_graph", "cuda", HashedChannels)
    with pytest.raises(UsageError, match=r"a step of decays runs Python .*; take eager or compile"):
        check_execution("cuda_graph", "cuda", Decays, "decays")


def test_a_suite_with_a_method_that_cannot_be_replayed_is_refused_by_its_name():
    wanted = {"tasks": "digits", "preset": "smoke", "seeds": (0,), "device": "cuda", "dtype": "float16"}
    wanted |= {"data_root": "/absent", "overrides": {"execution": "cuda_graph"}}
    trials = plan(SuiteSpec(methods="sdgp,dense", **wanted))
    assert [trial.recipe["execution"] for trial in trials] == ["cuda_graph"] * 2
    with pytest.raises(UsageError, match="a step of prunetrain runs Python"):
        plan(SuiteSpec(methods="dense,prunetrain", **wanted))
