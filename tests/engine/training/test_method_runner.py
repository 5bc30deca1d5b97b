"""The hooks of the contract: their order, what they may do, and a loop of one's own."""

import dataclasses

import pytest
import torch
from small_methods import Nothing, WeightMask
from small_training import RECIPE, SHAPE, fitted, small_net, small_trainer

from methods.dense import Dense
from suite.engine.network.planned_layer import PlannedLayer
from suite.method import SKIP_STEP, Density, Method, OpPlan, ReconfigPlan
from suite.ops import apply


def test_hooks_run_in_the_order_of_the_contract():
    seen = []

    class Recorder(Method):
        def setup(self, ctx):
            seen.append(("setup", ctx.optimizer is None, ctx.layers["0"].op_plan.empty))

        def plan(self, name, layer):
            if name == "0":
                seen.append("plan")

        def transform_batch(self, images, labels, ctx):
            seen.append("transform_batch")
            return images, labels

        def regularization(self, model, ctx):
            seen.append(("regularization", ctx.task_loss is not None, torch.is_autocast_enabled("cpu")))
            assert not ctx.task_loss.requires_grad

        def before_optimizer_step(self, ctx):
            seen.append(("before", ctx.step, ctx.batch_index, ctx.model[0].weight.grad is not None))

        def after_optimizer_step(self, ctx):
            seen.append(("after", ctx.step))

        def on_epoch_end(self, ctx):
            seen.append(("epoch_end", ctx.epochs_done, ctx.progress))

        def reconfigure(self, ctx):
            seen.append(("reconfigure", ctx.epochs_done))
            return ReconfigPlan(kept={"0": list(range(7))}) if ctx.epochs_done == 1 else None

        def on_reconfigured(self, index_map, ctx):
            seen.append(("on_reconfigured", index_map("0.weight", torch.zeros(8, 3, 3, 3)).shape[0]))

    recipe = dataclasses.replace(RECIPE, epochs=2, batch_size=64)
    small_trainer(Recorder(), recipe, dtype=torch.bfloat16).fit()
    step = [
        "transform_batch",
        ("regularization", True, False),
    ]
    assert seen == [
        ("setup", True, True),
        "plan",
        *step,
        ("before", 0, 0, True),
        ("after", 0),
        ("epoch_end", 1, 0.5),
        ("reconfigure", 1),
        ("on_reconfigured", 7),
        "plan",
        *step,
        ("before", 1, 0, True),
        ("after", 1),
        ("epoch_end", 2, 1.0),
        ("reconfigure", 2),
    ]


def test_finished_model_carries_the_masked_weights_and_no_plan():
    trainer = small_trainer(WeightMask())
    before = []
    trainer.runner.finish, finish = (
        lambda: (before.append(trainer.evaluation.accuracy_and_loss(trainer.splits.test)), finish())[1],
        (trainer.runner.finish),
    )
    trainer.fit()
    assert trainer.model[4].weight[:, ::2].count_nonzero() == 0
    assert all(layer.op_plan.empty for layer in trainer.model.modules() if isinstance(layer, PlannedLayer))
    assert trainer.evaluation.accuracy_and_loss(trainer.splits.test) == pytest.approx(before[0], abs=1e-6)


def test_skipped_step_leaves_weights_and_goes_on():
    class SkipsAll(Method):
        def before_optimizer_step(self, ctx):
            return SKIP_STEP

        def after_optimizer_step(self, ctx):
            self.after = ctx.step

    method = SkipsAll()
    trainer = small_trainer(method)
    before = trainer.model[0].weight.clone()
    trainer.fit()
    assert torch.equal(trainer.model[0].weight, before)
    assert method.after == 11


def test_step_with_infinite_gradients_calls_neither_hook():
    calls = []

    class Explodes(Method):
        def regularization(self, model, ctx):
            # The value is finite and its gradient is not: sqrt at 0.
            return (model[0].weight * 0).sum().sqrt() if ctx.step == 1 else None

        def before_optimizer_step(self, ctx):
            calls.append(ctx.step)

        def after_optimizer_step(self, ctx):
            calls.append(ctx.step)

    trainer, records = fitted(Explodes())
    assert 1 not in calls
    assert {0, 2, 11} <= set(calls)
    assert [record["skipped_steps"] for record in records] == [1, 0, 0]
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_memory_estimate_falls_with_what_a_plan_takes_out():
    trainer = small_trainer(Nothing())
    estimate = trainer.ctx.memory_estimate
    whole = estimate(ReconfigPlan())
    narrow = estimate(ReconfigPlan(kept={"0": [0, 1, 2, 3]}))
    twice = estimate(ReconfigPlan(batch_size=32))
    assert narrow < whole
    assert estimate(ReconfigPlan(removed_branches=("3.branch",))) < whole
    # An image keeps at least each layer's input for backward, and no more than a few times as much.
    inputs = 4 * (3 * 64 + 4 * 8 * 64 + 8)
    assert inputs < (twice - whole) / 16 < 4 * inputs


def test_method_that_forgets_a_removed_branch_is_not_asked_for_it():
    class Forgets(Method):
        def setup(self, ctx):
            self.known = set(ctx.layers)

        def reconfigure(self, ctx):
            return ReconfigPlan(removed_branches=("3.branch",)) if ctx.epochs_done == 1 else None

        def on_reconfigured(self, index_map, ctx):
            self.known = {name for name in self.known if index_map.exists(name)}

        def density(self, name, ctx):
            assert name in self.known
            return Density()

    trainer, _ = fitted(Forgets())
    assert trainer.ledger.current.keys() == {"0", "4", "8"}


def test_plan_of_numpy_integers_is_plain_data():
    numpy = pytest.importorskip("numpy")
    plan = ReconfigPlan(kept={"0": numpy.arange(3)})
    assert [type(index) for index in plan.to_json()["kept"]["0"]] == [int] * 3
    assert ReconfigPlan.from_json(plan.to_json()).kept == {"0": [0, 1, 2]}


def test_a_forward_between_steps_has_the_first_slot():
    slots = []

    class Notes(Method):
        def plan(self, name, layer):
            return (
                OpPlan(weight_forward=lambda weight, site: (slots.append(site.micro_batch_index), weight)[1])
                if name == "0"
                else None
            )

    model = small_net()
    hooks = apply(model, Notes(), input_shape=SHAPE, num_classes=4, epochs=1, batch_size=4)
    hooks.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    images = torch.zeros(2, *SHAPE)
    for index in range(2):
        hooks.begin_micro_batch(index, 2)
        model(images).sum().backward()
    hooks.optimizer_step()
    model(images)
    assert slots == [0, 1, 0]


def test_what_a_runner_fills_in_cannot_be_given():
    given = {"input_shape": SHAPE, "num_classes": 4, "epochs": 1, "batch_size": 2}
    with pytest.raises(TypeError, match=r"^apply\(\) got an unexpected keyword argument 'rank'"):
        apply(small_net(), Nothing(), **given, rank=5)
    with pytest.raises(TypeError, match=r"'sed'.*seed"):
        apply(small_net(), Nothing(), **given, sed=5)
    runner = apply(small_net(), Nothing(), train_size=SHAPE[1] * 2, **given)
    assert runner.ctx.spaces.input_sizes != apply(small_net(), Nothing(), **given).ctx.spaces.input_sizes


@pytest.mark.parametrize(
    ("method", "wrong", "said"),
    [
        (Nothing(), {"epochs": ..., "batch_size": ...}, "epochs; batch_size"),
        (Nothing(), {"num_classes": "4"}, "num_classes in whole numbers above 0, not '4'"),
        (Nothing(), {"input_shape": 32, "train_size": (8, 8)}, r"input_shape .* not 32; train_size .* not \(8, 8\)"),
        (Nothing(), {"model": [1]}, r"a model, not \[1\]"),
        (Nothing, {"micro_batches": 0}, "an instance of a method, not <class '.*Nothing'>; micro_batches .* not 0"),
        ("dense[a=1]", {}, r"an instance of a method, not 'dense\[a=1\]'"),
        (None, {}, "an instance of a method, not None"),
    ],
)
def test_a_call_of_apply_with_wrong_arguments_is_answered_with_one_that_works(method, wrong, said):
    given = {"model": small_net(), "input_shape": SHAPE, "num_classes": 4, "epochs": 1, "batch_size": 2, **wrong}
    with pytest.raises(TypeError, match=rf"^apply\(\) expects {said}, as in: from [^\n]*$") as refused:
        apply(method=method, **{name: value for name, value in given.items() if value is not ...})
    names = {"model": small_net()}
    exec(str(refused.value).partition(", as in: ")[2], names)
    assert type(names["hooks"].method) is (Dense if method in ("dense[a=1]", None) else Nothing)
