"""The training loop: every operand and hook trains and resumes bit for bit, and divergence ends it."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from small_methods import METHODS, ChannelTopK, Nothing, Replans, Shrinks, WeightMask
from small_training import (
    RECIPE,
    assert_it_resumes,
    assert_same_weights,
    fitted,
    small_net,
    small_trainer,
    steps_by_hand,
    without_times,
)
from torch import nn

from suite.engine.training.optimizer_state import make_optimizer
from suite.engine.training.records import Diverged
from suite.method import Method, ReconfigPlan


def trained(record):
    """What was trained: another execution takes other memory, too."""
    return {key: value for key, value in without_times(record).items() if key != "step_memory_bytes"}


CASES = [(method, torch.float32) for method in METHODS]
CASES += [(method, torch.bfloat16) for method in (WeightMask, ChannelTopK, Shrinks)]


@pytest.mark.parametrize(("method", "dtype"), CASES)
def test_every_operand_and_hook_trains_and_resumes_bit_exactly(method, dtype):
    changes_later = method in (Shrinks, Replans)  # the others are in the same state after every epoch
    recipe = dataclasses.replace(RECIPE, epochs=3 if changes_later else 2)
    _, records, _ = assert_it_resumes(
        lambda **callbacks: small_trainer(method(), recipe, dtype=dtype, **callbacks),
        after=None if changes_later else [1],
    )
    assert changes_later or records[-1]["train_loss"] < records[0]["train_loss"]
    assert [record["epoch"] for record in records] == [*range(1, recipe.epochs + 1)]


@pytest.mark.parametrize("changes", [{}, {"norm_bias_lr": 4.0}, {"relative_decay": True, "norm_bias_lr": 4.0}])
def test_dense_equals_a_loop_written_by_hand(changes):
    recipe = dataclasses.replace(RECIPE, label_smoothing=0.1, weight_decay=1e-3, nesterov=True, **changes)
    trainer, _ = fitted(Nothing(), recipe)

    torch.manual_seed(0)
    model = small_net().to(memory_format=torch.channels_last)
    factor = recipe.norm_bias_lr
    decays = [1e-3 / (0.05 if recipe.relative_decay else 1), 1e-3 / (0.05 * factor if recipe.relative_decay else 1)]
    biases = [module.bias for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    others = [one for one in model.parameters() if all(one is not bias for bias in biases)]
    groups = [{"params": others, "weight_decay": decays[0]}, {"params": biases, "weight_decay": decays[1]}]
    optimizer = torch.optim.SGD(groups, lr=1, momentum=0.9, nesterov=True)
    assert list(steps_by_hand(model, optimizer, (1, factor), label_smoothing=0.1))[-1] == 12
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], tensor, rtol=0, atol=1e-6)


def test_adamw_equals_a_loop_written_by_hand_and_resumes():
    recipe = dataclasses.replace(RECIPE, optimizer="adamw", second_momentum=0.99, weight_decay=0.1, nesterov=False)
    trainer, *_ = assert_it_resumes(lambda **callbacks: small_trainer(Nothing(), recipe, **callbacks), after=[1])

    torch.manual_seed(0)
    model = small_net().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(recipe.momentum, 0.99), weight_decay=0.1)
    assert list(steps_by_hand(model, optimizer))[-1] == 12
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], tensor, rtol=0, atol=1e-6)


def test_memory_of_the_first_step_includes_what_the_optimizer_will_keep():
    def peak(**changes):
        trainer, _ = fitted(Nothing(), dataclasses.replace(RECIPE, epochs=1, nesterov=False, **changes))
        return trainer.progress.peak_memory_bytes

    size = sum(p.numel() * p.element_size() for p in small_net().parameters())
    assert peak(optimizer="adamw") - peak(momentum=0.9) == size
    assert peak(momentum=0.9) - peak(momentum=0.0) == size


def test_evaluation_comes_after_the_reconfiguration_of_the_last_epoch():
    class PrunesLast(Method):
        def reconfigure(self, ctx):
            return ReconfigPlan(kept={"0": [0]}) if ctx.epochs_done == ctx.epochs else None

    trainer, records = fitted(PrunesLast())
    accuracy, loss = trainer.evaluation.accuracy_and_loss(trainer.splits.test)
    assert (records[-1]["test_accuracy"], records[-1]["test_loss"]) == (accuracy, loss)
    assert records[-1]["layers"]["0"]["out"] == 1
    assert records[-1]["params"] == sum(p.numel() for p in trainer.model.parameters())


@pytest.fixture(scope="module")
def plain():
    """Records of dense training by `RECIPE`."""
    _, records = fitted(Nothing())
    return records


def test_the_last_evaluation_averages_six_views(plain):
    trainer, records = fitted(Nothing(), dataclasses.replace(RECIPE, six_views=True))
    assert [record.get("test_accuracy_one_view") for record in records] == [None, None, plain[-1]["test_accuracy"]]
    assert [record["test_loss"] for record in records[:2]] == [record["test_loss"] for record in plain[:2]]
    ((images, labels),) = trainer.splits.test.epoch(0, 40)
    padded, logits = F.pad(images, (1, 1, 1, 1), mode="reflect"), torch.zeros(len(labels), 4)
    with torch.no_grad():
        for weight, view in ((2, images), (1, padded[:, :, :-2, :-2]), (1, padded[:, :, 2:, 2:])):
            logits += weight * (trainer.model(view) + trainer.model(view.flip(3))) / 8
    assert records[-1]["test_accuracy"] == pytest.approx((logits.argmax(1) == labels).double().mean().item())
    assert records[-1]["test_loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)


@pytest.mark.parametrize(("every", "evaluated"), [(2, [2, 3]), (9, [3])])
def test_evaluations_come_after_each_nth_epoch_and_the_last(plain, every, evaluated):
    _, records = fitted(Nothing(), dataclasses.replace(RECIPE, eval_every=every))
    assert [record["epoch"] for record in records if "test_accuracy" in record] == evaluated
    assert [record["test_loss"] for record in records if "test_loss" in record] == [
        plain[epoch - 1]["test_loss"] for epoch in evaluated
    ]
    assert [record["train_loss"] for record in records] == [record["train_loss"] for record in plain]


def test_a_training_with_rare_evaluations_and_averaged_weights_resumes_as_it_was():
    recipe = dataclasses.replace(RECIPE, eval_every=2, ema=0.9)
    _, records, resumed = assert_it_resumes(lambda **callbacks: small_trainer(Nothing(), recipe, **callbacks))
    assert [record["epoch"] for record in records if "test_accuracy" in record] == [2, 3]
    for one in resumed:
        assert one.progress.best_accuracy == max(record.get("test_accuracy", 0.0) for record in records)


def test_loss_that_is_no_number_is_divergence():
    with pytest.raises(Diverged, match=r"the loss is (nan|inf) in epoch"):
        small_trainer(Nothing(), dataclasses.replace(RECIPE, learning_rate=1e30)).fit()


def test_a_record_names_the_backend_of_each_layer():
    trainer, records = fitted(WeightMask(), dataclasses.replace(RECIPE, epochs=1))
    found = records[-1]["backends"]
    assert set(found.values()) == {"torch", "slicing"}
    for name, layer in trainer.ctx.layers.items():
        assert (found[name] == "slicing") is (layer.weight.shape[1] == 8)


def test_reconfiguration_changes_batch_learning_rate_and_ledger():
    _, records = fitted(Shrinks())
    assert [record["batch_size"] for record in records] == [16, 32, 32]
    assert [record["steps"] for record in records] == [4, 2, 2]
    assert records[1]["learning_rate"] == pytest.approx(0.5 * RECIPE.learning_rate_at(0.5))
    assert records[0]["layers"]["0"]["out"] == 7
    flops = [record["step_flops"] for record in records]
    assert flops[1]["dense"] == 2 * flops[0]["dense"]  # twice the batch
    assert flops[1]["current"] < flops[1]["dense"]
    assert flops[2]["current"] < flops[1]["current"]
    assert [record["reconfigured"] for record in records] == [True, True, False]


def test_restart_begins_schedule_and_epochs_again_and_clears_the_momentum():
    held, records = {}, []

    class Restarts(Method):
        def before_optimizer_step(self, ctx):
            held[ctx.step] = len(ctx.optimizer.state)

        def reconfigure(self, ctx):
            return ReconfigPlan(restart=True) if ctx.epochs_done == 2 else None

    small_trainer(Restarts(), on_epoch=records.append).fit()
    assert [record["epoch"] for record in records] == [1, 2, 3, 4, 5]
    assert records[2]["learning_rate"] == records[0]["learning_rate"]
    assert (held[0], held[8]) == (0, 0)  # four steps an epoch
    assert all(count for step, count in held.items() if step not in (0, 8))


def test_batch_that_does_not_split_into_micro_batches_is_refused():
    trainer = small_trainer(Nothing(), dataclasses.replace(RECIPE, micro_batches=4))
    with pytest.raises(ValueError, match=r"a batch of 10 images cannot be split into recipe\.micro_batches=4"):
        trainer.apply_plan(ReconfigPlan(batch_size=10))


def test_infinite_regulariser_is_divergence_though_its_gradient_is_finite():
    class Infinite(Method):
        def regularization(self, model, ctx):
            return (model[0].weight * 0).sum() + float("inf")

    with pytest.raises(Diverged, match="the regularization is inf in epoch 1, step 1"):
        small_trainer(Infinite()).fit()


def test_an_evaluation_that_is_no_number_is_divergence_and_leaves_the_trial_unfinished():
    class Poisons(Method):
        def on_epoch_end(self, ctx):
            if ctx.epochs_done == ctx.epochs:
                ctx.model[0].weight.data.fill_(float("nan"))

    trainer = small_trainer(Poisons())
    with pytest.raises(Diverged, match="the test_loss is nan after epoch 3"):
        trainer.fit()
    assert not trainer.progress.finished
    assert trainer.progress.last_record["epoch"] == 2


def test_resume_goes_on_with_random_numbers_clock_and_counters():
    """Dropout draws from torch's own generator, whose state is in the checkpoint; so are seconds and samples."""

    def with_dropout():
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(288, 4))

    states = []
    whole = small_trainer(
        Nothing(), model=with_dropout(), on_checkpoint=lambda state: states.append(copy.deepcopy(state()))
    )
    whole.fit()
    resumed = small_trainer(Nothing(), model=with_dropout())
    torch.manual_seed(123)  # another process has drawn other numbers
    resumed.load_state_dict(states[0])
    assert resumed.clock.seconds == states[0]["clock"]
    assert resumed.clock.seconds["train"] > 0
    assert resumed.progress.samples == 64
    assert resumed.progress.peak_memory_bytes == whole.progress.peak_memory_bytes > 0
    assert 0 < resumed.ctx.progress < 1
    resumed.fit()
    assert resumed.progress.samples == whole.progress.samples == 192
    assert_same_weights(whole, resumed)


@pytest.mark.parametrize("everywhere", [True, False])
def test_weight_decay_spares_normalisation_and_biases_if_the_recipe_says_so(everywhere):
    recipe = dataclasses.replace(RECIPE, weight_decay=0.25, decay_norm_and_bias=everywhere)
    model = small_net()
    groups = make_optimizer(model, recipe).param_groups
    decayed = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert decayed[id(parameter)] == (0.25 if everywhere or parameter.ndim > 1 else 0.0), name
