"""The training loop: every hook at its place, every operand of the plan, and bit-exact resume of each."""

import dataclasses
import io

import pytest
import torch
import torch.nn.functional as F
from small_training import RECIPE, SHAPE, SmallBatches, small_net, small_trainer
from torch import nn

from suite.backends import COMPACT, TorchBackend
from suite.method import SKIP_STEP, Compact, Density, Method, OpPlan, ReconfigPlan
from suite.ops import PlannedLayer
from suite.recipe import Recipe
from suite.trainer import Diverged


class Nothing(Method):
    """Dense."""


class WeightMask(Method):
    """Halves of the input channels masked in the forward, like SR-STE or ClickTrain."""

    def plan(self, name, layer):
        return OpPlan(weight_forward=mask_even, backend=COMPACT) if layer.weight.shape[1] == 8 else None

    def density(self, name, step):
        return Density(0.5, 0.5, 1.0) if name != "0" else Density()


def mask_even(weight, site):
    masked = weight.clone()
    masked[:, ::2] = 0
    return masked


class ChannelTopK(Method):
    """The strongest quarter of dO's channels for both gradients, like ssProp."""

    share: float = 0.25

    def plan(self, name, layer):
        return OpPlan(grad_shared=self.strongest) if isinstance(layer, nn.Conv2d) else None

    def strongest(self, grad, site):
        kept = grad.abs().sum((0, 2, 3)).topk(int(grad.shape[1] * self.share)).indices.sort().values
        return Compact(grad.index_select(1, kept), kept)

    def density(self, name, step):
        return Density(1.0, self.share, self.share) if name != "8" else Density()


class CountingBackend(TorchBackend):
    """Torch's products, counted."""

    def __init__(self):
        self.calls = {"forward": 0, "dgrad": 0, "wgrad": 0}

    def forward(self, *operands):
        self.calls["forward"] += 1
        return super().forward(*operands)

    def dgrad(self, *operands):
        self.calls["dgrad"] += 1
        return super().dgrad(*operands)

    def wgrad(self, *operands, **keywords):
        self.calls["wgrad"] += 1
        return super().wgrad(*operands, **keywords)

    def executed(self, product, grad, weight, geometry):
        return {"forward": 1.0, "dgrad": 0.5, "wgrad": 1.0}[product]


class OwnBackend(Method):
    """A backend of the method's own, like a sparse kernel."""

    def setup(self, ctx):
        self.backend = CountingBackend()

    def plan(self, name, layer):
        return OpPlan(backend=self.backend)


class Mixup(Method):
    """Labels become probabilities."""

    def transform_batch(self, images, labels, ctx):
        share = 0.7
        probabilities = F.one_hot(labels, ctx.num_classes).float()
        return (
            share * images + (1 - share) * images.flip(0),
            share * probabilities + (1 - share) * probabilities.flip(0),
        )


class SkipsOdd(Method):
    """Takes every second step only, and remembers what it saw."""

    def setup(self, ctx):
        self.accumulated = torch.zeros(())

    def before_optimizer_step(self, ctx):
        self.accumulated += ctx.model[0].weight.grad.abs().sum()
        return SKIP_STEP if ctx.step % 2 else None

    def state_dict(self):
        return {"accumulated": self.accumulated}

    def load_state_dict(self, state):
        self.accumulated = state["accumulated"].clone()


class RandomChannels(Method):
    """Random masks from the site's key: nothing to save."""

    def plan(self, name, layer):
        return OpPlan(grad_dgrad=drop_randomly, grad_wgrad=drop_randomly)


def drop_randomly(grad, site):
    mask = torch.rand(grad.shape[:2], generator=site.generator()) < 0.5
    return grad * mask.view(*mask.shape, *[1] * (grad.ndim - 2))


class Shrinks(Method):
    """Takes a channel a epoch from one space, then the residual branch; changes batch size and learning rate."""

    def reconfigure(self, ctx):
        space = ctx.spaces["0"]
        if ctx.epochs_done == 1:
            return ReconfigPlan(kept={"0": space.original[1:]}, batch_size=32, lr_scale=0.5)
        if ctx.epochs_done == 2 and ctx.spaces.removable_branches:
            return ReconfigPlan(removed_branches=("3.branch",))
        return None


class Replans(Method):
    """Plans anew in its second epoch."""

    def plan(self, name, layer):
        return OpPlan(weight_forward=mask_even) if self.plan_version and layer.weight.shape[1] == 8 else None

    def on_epoch_end(self, ctx):
        if ctx.epochs_done == 2:
            self.plan_version = 1

    def state_dict(self):
        return {}


class Decays(Method):
    """A regulariser with a coefficient set at the first step, as PruneTrain's."""

    def setup(self, ctx):
        self.coefficient = None

    def regularization(self, model, ctx):
        term = model[0].weight.square().sum()
        if self.coefficient is None:
            self.coefficient = 0.25 * ctx.task_loss.item() / term.item()
        return self.coefficient * term

    def state_dict(self):
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state):
        self.coefficient = state["coefficient"]


METHODS = [
    Nothing, WeightMask, ChannelTopK, OwnBackend, Mixup, SkipsOdd, RandomChannels, Shrinks, Replans, Decays
]  # fmt: skip
FIVE = dataclasses.replace(RECIPE, epochs=5)


def without_times(record):
    return {key: value for key, value in record.items() if not key.endswith("time_s")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_every_operand_and_hook_trains_and_resumes_bit_exactly(method, dtype):
    records, states = [], []

    def keep(state):
        file = io.BytesIO()
        torch.save(state(), file)
        states.append(file.getvalue())

    whole = small_trainer(method(), FIVE, dtype=dtype, on_epoch=records.append, on_checkpoint=keep)
    whole.fit()
    assert records[-1]["train_loss"] < records[0]["train_loss"]
    assert [record["epoch"] for record in records] == [1, 2, 3, 4, 5]
    for done, state in enumerate(states, start=1):
        again = []
        resumed = small_trainer(method(), FIVE, dtype=dtype, on_epoch=again.append)
        resumed.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
        resumed.fit()
        for name, tensor in whole.model.state_dict().items():
            assert torch.equal(resumed.model.state_dict()[name], tensor), (done, name)
        assert [without_times(r) for r in again] == [without_times(r) for r in records[done:]]
        assert resumed.ledger.to_csv(5) == whole.ledger.to_csv(5)


def test_dense_equals_a_loop_written_by_hand():
    recipe = dataclasses.replace(RECIPE, label_smoothing=0.1, weight_decay=1e-3, nesterov=True)
    trainer = small_trainer(Nothing(), recipe)
    trainer.fit()

    torch.manual_seed(0)
    model = small_net().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1, momentum=0.9, weight_decay=1e-3, nesterov=True)
    data, step = SmallBatches(64, seed=1), 0
    for epoch in range(3):
        for images, labels in data.epoch(epoch, 16):
            optimizer.param_groups[0]["lr"] = 0.05 * (1 - 0.9 * step / 12)
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
            optimizer.step()
            step += 1
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], tensor, rtol=0, atol=1e-6)


def test_hooks_run_in_the_order_of_the_contract():
    seen = []

    class Recorder(Method):
        def setup(self, ctx):
            seen.append(("setup", ctx.optimizer is None, type(ctx.layers["0"]) is nn.Conv2d))

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


def test_evaluation_comes_after_the_reconfiguration_of_the_last_epoch():
    class PrunesLast(Method):
        def reconfigure(self, ctx):
            return ReconfigPlan(kept={"0": [0]}) if ctx.epochs_done == ctx.epochs else None

    records = []
    trainer = small_trainer(PrunesLast(), on_epoch=records.append)
    trainer.fit()
    accuracy, loss = trainer.evaluate(trainer.splits.test)
    assert (records[-1]["test_accuracy"], records[-1]["test_loss"]) == (accuracy, loss)
    assert records[-1]["layers"]["0"]["out"] == 1
    assert records[-1]["params"] == sum(p.numel() for p in trainer.model.parameters())


def test_finished_model_carries_the_masked_weights_and_no_plan():
    trainer = small_trainer(WeightMask())
    before = []
    trainer.hooks.finish, finish = (
        lambda: (before.append(trainer.evaluate(trainer.splits.test)), finish())[1],
        (trainer.hooks.finish),
    )
    trainer.fit()
    assert trainer.model[4].weight[:, ::2].count_nonzero() == 0
    assert all(layer.op_plan.empty for layer in trainer.model.modules() if isinstance(layer, PlannedLayer))
    assert trainer.evaluate(trainer.splits.test) == pytest.approx(before[0], abs=1e-6)


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

    records = []
    trainer = small_trainer(Explodes(), on_epoch=records.append)
    trainer.fit()
    assert 1 not in calls
    assert {0, 2, 11} <= set(calls)
    assert [record["skipped_steps"] for record in records] == [1, 0, 0]
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_loss_that_is_no_number_is_divergence():
    with pytest.raises(Diverged, match=r"the loss is (nan|inf) in epoch"):
        small_trainer(Nothing(), dataclasses.replace(RECIPE, learning_rate=1e30)).fit()


@pytest.mark.parametrize("method", [Nothing, RandomChannels])
def test_micro_batches_accumulate_and_have_slots_of_their_own(method):
    slots = set()

    class Notes(method):
        def plan(self, name, layer):
            inner = super().plan(name, layer) or OpPlan()
            return dataclasses.replace(inner, grad_shared=lambda grad, site: (slots.add(site.slot), grad)[1])

    def without_norm():
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))

    whole = small_trainer(Notes(), RECIPE, model=without_norm())
    torch.manual_seed(0)
    parts = small_trainer(Notes(), dataclasses.replace(RECIPE, micro_batches=4), model=without_norm())
    parts.model.load_state_dict(whole.model.state_dict())
    whole.fit()
    assert slots == {0}
    parts.fit()
    assert slots == {0, 1, 2, 3}
    if method is Nothing:
        for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_gradient_clipping_bounds_the_norm():
    norms = []

    class Watches(Method):
        def before_optimizer_step(self, ctx):
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in ctx.model.parameters()]).item())

    small_trainer(Watches(), dataclasses.replace(RECIPE, clip_norm=0.01)).fit()
    assert max(norms) == pytest.approx(0.01, rel=1e-3)


def test_reconfiguration_changes_batch_learning_rate_and_ledger():
    records = []
    trainer = small_trainer(Shrinks(), on_epoch=records.append)
    trainer.fit()
    assert [record["batch_size"] for record in records] == [16, 32, 32]
    assert [record["steps"] for record in records] == [4, 2, 2]
    assert records[1]["learning_rate"] == pytest.approx(0.5 * RECIPE.learning_rate_at(0.5))
    assert records[0]["layers"]["0"]["out"] == 7
    flops = [record["step_flops"] for record in records]
    assert flops[1]["dense"] == 2 * flops[0]["dense"]  # twice the batch
    assert flops[1]["current"] < flops[1]["dense"]
    assert flops[2]["current"] < flops[1]["current"]
    assert [record["reconfigured"] for record in records] == [True, True, False]


def test_restart_begins_schedule_and_epochs_again():
    class Restarts(Method):
        def reconfigure(self, ctx):
            return ReconfigPlan(restart=True) if ctx.epochs_done == 2 else None

    records = []
    trainer = small_trainer(Restarts(), on_epoch=records.append)
    trainer.fit()
    assert [record["epoch"] for record in records] == [1, 2, 3, 4, 5]
    assert records[2]["learning_rate"] == records[0]["learning_rate"]


def test_memory_estimate_falls_with_what_a_plan_takes_out():
    trainer = small_trainer(Nothing())
    estimate = trainer.ctx.memory_estimate
    whole = estimate(ReconfigPlan())
    narrow = estimate(ReconfigPlan(kept={"0": [0, 1, 2, 3]}))
    twice = estimate(ReconfigPlan(batch_size=32))
    # Inputs: 3x64, 4 x 8x64 (residual twice, layer 4), linear 8; 4 bytes each, 16 images.
    inputs = 4 * 16 * (3 * 64 + 3 * 8 * 64 + 8)
    weights = 3 * 4 * (216 + 576 * 3 + 8 + 36)
    assert whole == inputs + weights
    assert twice == 2 * inputs + weights
    assert narrow < whole
    assert estimate(ReconfigPlan(removed_branches=("3.branch",))) < whole


def test_ledger_counts_each_product_and_none_for_the_first_data_gradient():
    trainer = small_trainer(ChannelTopK(), dataclasses.replace(RECIPE, epochs=1))
    trainer.fit()
    macs = {"0": 216 * 64, "3.branch.0": 576 * 64, "3.branch.3": 576 * 64, "4": 576 * 64, "8": 32}
    dense = 2 * 64 * sum(macs[name] * (2 if name == "0" else 3) for name in macs)
    assert trainer.ledger.train_flops["dense"] == dense
    assert trainer.ledger.train_flops["current"] == dense
    skipped = 2 * 64 * 0.75 * sum(macs[name] * (1 if name == "0" else 2) for name in macs if name != "8")
    assert trainer.ledger.train_flops["effective"] == pytest.approx(dense - skipped)
    assert trainer.ledger.train_flops["executed"] == pytest.approx(dense - skipped)
    assert trainer.ledger.inference_flops() == 2 * sum(macs.values())


def test_masked_emulation_executes_everything_while_a_backend_says_what_it_did():
    trainer = small_trainer(OwnBackend(), dataclasses.replace(RECIPE, epochs=1))
    trainer.fit()
    flops = trainer.ledger.train_flops
    assert flops["effective"] == flops["current"] == flops["dense"]
    assert flops["executed"] < flops["current"]
    assert trainer.hooks.method.backend.calls["dgrad"] == 4 * 4  # four steps, four layers below the first
    masked = small_trainer(RandomChannels(), dataclasses.replace(RECIPE, epochs=1))
    masked.fit()
    assert masked.ledger.train_flops["executed"] == masked.ledger.train_flops["current"]


def test_peak_memory_counts_saved_tensors_parameters_gradients_and_momentum():
    trainer = small_trainer(Nothing(), dataclasses.replace(RECIPE, epochs=1))
    trainer.fit()
    parameters = sum(p.numel() for p in trainer.model.parameters()) * 4
    assert trainer.progress.peak_memory_bytes > 3 * parameters + 16 * 8 * 64 * 4 * 4


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", [0.1, 0.55, 1.0, 0.5, 0.0]),
        ("cosine", [0.1, 0.55, 1.0, 0.5, 0.0]),
        ("step", [1.0, 1.0, 1.0, 0.1, 0.01]),
    ],
)
def test_learning_rate_schedules(schedule, expected):
    recipe = Recipe(
        epochs=1, batch_size=1, learning_rate=1.0, schedule=schedule, lr_start=0.1, peak_at=0.5, milestones=(0.75, 1.0)
    )
    assert [recipe.learning_rate_at(p) for p in (0, 0.25, 0.5, 0.75, 1.0)] == pytest.approx(expected)


def test_apply_serves_a_loop_of_ones_own():
    from suite.ops import apply

    torch.manual_seed(0)
    model = small_net()
    hooks = apply(model, SkipsOdd(), input_shape=SHAPE, num_classes=4, epochs=2, batch_size=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    hooks.attach(optimizer)
    data, losses = SmallBatches(64, seed=1), []
    for epoch in range(4):
        for images, labels in data.epoch(epoch, 16):
            images, labels = hooks.transform_batch(images, labels)
            loss = F.cross_entropy(model(images), labels)
            hooks.add_regularization(loss).backward()
            hooks.optimizer_step()
            optimizer.zero_grad()
            losses.append(loss.item())
        hooks.end_epoch()
    hooks.finish()
    assert losses[-1] < losses[0]
    assert hooks.ctx.step == 16


def test_evaluation_that_is_no_number_is_divergence():
    class Poisons(Method):
        def on_epoch_end(self, ctx):
            ctx.model[0].weight.data.fill_(float("nan"))

    with pytest.raises(Diverged, match="in the evaluation after epoch 1"):
        small_trainer(Poisons()).fit()


def test_batch_that_does_not_split_into_micro_batches_is_refused():
    class Odd(Method):
        def reconfigure(self, ctx):
            return ReconfigPlan(batch_size=10)

    with pytest.raises(ValueError, match=r"a batch of 10 does not split into recipe\.micro_batches=4"):
        small_trainer(Odd(), dataclasses.replace(RECIPE, micro_batches=4)).fit()


def test_method_that_forgets_a_removed_branch_is_not_asked_for_it():
    class Forgets(Method):
        def setup(self, ctx):
            self.known = set(ctx.layers)

        def reconfigure(self, ctx):
            return ReconfigPlan(removed_branches=("3.branch",)) if ctx.epochs_done == 1 else None

        def on_reconfigured(self, index_map, ctx):
            self.known = {name for name in self.known if index_map.exists(name)}

        def density(self, name, step):
            assert name in self.known
            return Density()

    trainer = small_trainer(Forgets())
    trainer.fit()
    assert trainer.ledger.current.keys() == {"0", "4", "8"}


def test_plan_of_numpy_integers_is_plain_data():
    numpy = pytest.importorskip("numpy")
    plan = ReconfigPlan(kept={"0": numpy.arange(3)})
    assert [type(index) for index in plan.to_json()["kept"]["0"]] == [int] * 3
    assert ReconfigPlan.from_json(plan.to_json()).kept == {"0": [0, 1, 2]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"learning_rate": float("nan")},
        {"weight_decay": -1.0},
        {"clip_norm": 0.0},
        {"label_smoothing": 1.0},
        {"peak_at": 1.5},
        {"milestones": (0.5, 1.5)},
        {"validation_images": -1},
        {"train_images": 0},
        {"test_images": 0},
        {"split_seed": -1},
        {"micro_batches": 3},
        {"momentum": 0.0, "nesterov": True},
        {"schedule": "wavy"},
    ],
)
def test_recipe_names_the_field_that_is_wrong(wrong):
    field = "nesterov" if "nesterov" in wrong else next(iter(wrong))
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(RECIPE, **wrong)
