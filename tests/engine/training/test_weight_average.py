"""The average of the weights: its values, evaluation, checkpoints, reconfigurations and masks."""

import dataclasses

import pytest
import torch
from small_methods import Nothing, Replans, Shrinks, SkipsOdd, WeightMask
from small_training import RECIPE, assert_it_resumes, fitted, small_net, small_trainer, steps_by_hand

from suite.errors import UsageError
from suite.method import Method, ReconfigPlan

DECAY = 0.8
AVERAGED = dataclasses.replace(RECIPE, ema=DECAY)
LOOKAHEAD = dataclasses.replace(RECIPE, lookahead_steps=3, lookahead_decay=0.9, lookahead_after=1.0)


def tensors(model):
    """Return the parameters and floating-point buffers of a model."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if tensor.is_floating_point()}


def assert_close(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("method", [Nothing, SkipsOdd])
def test_the_final_model_is_the_average_over_the_steps(method):
    trainer = small_trainer(method(), AVERAGED)
    average, step = {}, trainer.runner.optimizer_step

    def observed():
        runs = step()
        if runs:
            for name, tensor in tensors(trainer.model).items():
                average[name] = DECAY * average[name] + (1 - DECAY) * tensor if name in average else tensor
        return runs

    trainer.runner.optimizer_step = observed
    trainer.fit()
    assert_close(tensors(trainer.model), average)
    plain, _ = fitted(method(), RECIPE)
    assert not torch.equal(plain.model[0].weight, trainer.model[0].weight)


def test_each_epoch_evaluates_the_average_and_trains_on_with_the_weights():
    trainer, records = fitted(Nothing(), dataclasses.replace(AVERAGED, ema=0.99))
    _, plain_records = fitted(Nothing())
    for record, plain in zip(records, plain_records, strict=True):
        assert record["train_loss"] == plain["train_loss"]  # the training itself is the same
        assert record["test_loss"] != plain["test_loss"]
        assert record["step_memory_bytes"] - plain["step_memory_bytes"] == trainer.average.bytes
    assert trainer.evaluation.record(trainer.splits)["test_loss"] == records[-1]["test_loss"]


def test_lookahead_equals_a_loop_written_by_hand():
    trainer, _ = fitted(Nothing(), LOOKAHEAD)

    torch.manual_seed(0)
    model = small_net().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1, momentum=0.9, weight_decay=5e-4)
    average = {}
    own = {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    for step in steps_by_hand(model, optimizer):
        if step == 5:  # the first after one epoch
            average = {name: tensor.clone() for name, tensor in own.items()}
        elif average and step % 3 == 0:
            decay = 0.9**3 * (step / 12) ** 3
            for name, tensor in own.items():
                tensor.copy_(average[name].lerp_(tensor, 1 - decay))
        for name, tensor in average.items() if step % 4 == 0 else ():
            own[name].copy_(tensor)
    assert_close(tensors(trainer.model), own)


@pytest.mark.parametrize(("method", "recipe"), [(Shrinks, AVERAGED), (Replans, LOOKAHEAD)])
def test_a_training_with_an_average_resumes_bit_for_bit(method, recipe):
    assert_it_resumes(lambda **callbacks: small_trainer(method(), recipe, **callbacks), after=[1, 2])


def test_a_cut_takes_the_same_channels_out_of_the_average():
    trainer = small_trainer(Method(), AVERAGED)
    trainer.train_epoch()
    before = tensors(trainer.average._averaged.module)
    trainer.apply_plan(ReconfigPlan(kept={"0": [0, 2, 5], "3.branch.0": [1, 2, 3, 7]}))
    after = tensors(trainer.average._averaged.module)
    assert torch.equal(after["0.weight"], before["0.weight"][[0, 2, 5]])
    assert torch.equal(after["1.running_mean"], before["1.running_mean"][[0, 2, 5]])
    assert torch.equal(after["3.branch.0.weight"], before["3.branch.0.weight"][[1, 2, 3, 7]][:, [0, 2, 5]])
    trainer.train_epoch()
    assert trainer.average._averaged.module[0].weight.shape == trainer.model[0].weight.shape == (3, 3, 3, 3)


@pytest.mark.parametrize("recipe", [AVERAGED, dataclasses.replace(LOOKAHEAD, lookahead_after=0.0)])
def test_masked_weights_are_zero_in_the_final_model(recipe):
    class ZeroesLate(Method):
        def after_optimizer_step(self, ctx):
            if ctx.epochs_done:
                with torch.no_grad():
                    ctx.layers["4"].weight[:, ::2] = 0

    trainer, _ = fitted(ZeroesLate(), recipe)
    weight = trainer.model[4].weight
    assert not weight[:, ::2].any()
    assert weight[:, 1::2].all()
    planned, _ = fitted(WeightMask(), recipe)
    assert not planned.model[4].weight[:, ::2].any()


def test_a_restart_begins_a_new_average():
    class Restarts(Method):
        def reconfigure(self, ctx):
            return ReconfigPlan(restart=True) if ctx.epochs_done == 1 else None

    trainer = small_trainer(Restarts(), AVERAGED)
    trainer.train_epoch()
    trainer.apply_plan(trainer.runner.plan_epoch_end())
    with trainer.average.evaluated():
        pass
    trainer.average.update(0.5)
    for name, tensor in tensors(trainer.model).items():
        assert torch.equal(trainer.average._averaged.module.state_dict()[name], tensor), name


def test_lookahead_counts_steps_that_ran_and_begins_anew():
    recipe = dataclasses.replace(LOOKAHEAD, epochs=1, lookahead_steps=2, lookahead_after=0.0)
    trainer, _ = fitted(SkipsOdd(), recipe)
    assert trainer.average._steps == 2
    trainer.average.begin_again()
    before = tensors(trainer.model)
    trainer.average.end_epoch()
    assert_close(tensors(trainer.model), before)


def test_lookahead_keeps_what_a_method_changes_at_the_end_of_an_epoch():
    class Halves(Method):
        def on_epoch_end(self, ctx):
            with torch.no_grad():
                ctx.model[0].weight.mul_(0.5)

    records, states = [], []
    trainer = small_trainer(
        Halves(), dataclasses.replace(LOOKAHEAD, lookahead_after=0.0, learning_rate=0.0, weight_decay=0.0),
        on_epoch=records.append, on_checkpoint=lambda state: states.append(state()["model"]["0.weight"].clone()),
    )  # fmt: skip
    first = trainer.model[0].weight.detach().clone()
    trainer.fit()
    for epoch, weight in enumerate(states, 1):
        torch.testing.assert_close(weight, first * 0.5**epoch, msg=str(epoch))
    assert trainer.evaluation.record(trainer.splits)["test_loss"] == records[-1]["test_loss"]


def test_lookahead_that_would_undo_whole_epochs_is_refused():
    with pytest.raises(UsageError, match=r"^recipe.lookahead_steps is 5; an epoch has 4 steps"):
        small_trainer(Nothing(), dataclasses.replace(RECIPE, lookahead_steps=5))
    small_trainer(Nothing(), dataclasses.replace(RECIPE, lookahead_steps=3, epochs=2.25))  # step 9 is kept
    with pytest.raises(UsageError, match=r"^recipe.lookahead_steps is 4; an epoch has 1 steps"):
        small_trainer(Nothing(), dataclasses.replace(RECIPE, lookahead_steps=4, epochs=2.25))
