"""Stochastic depth: which branches a step leaves out, what stays as it is, and what is counted."""

import csv
import dataclasses
import io
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from small_training import (
    CLASSES,
    RECIPE,
    SHAPE,
    SmallBatches,
    assert_it_resumes,
    fitted,
    plain_net,
    small_net,
    small_trainer,
)
from torch import nn

from methods.stochastic_depth import StochasticDepth
from suite.choices import build_model
from suite.engine.cost.flops import PRODUCTS, count_layers
from suite.engine.cost.ledger import COLUMNS
from suite.engine.training.execution import check_execution
from suite.errors import UsageError
from suite.method import Context, Method
from suite.ops import apply
from suite.plan import random_key
from suite.trials.stages import StageList

ONE_EPOCH = dataclasses.replace(RECIPE, epochs=1, weight_decay=1e-2)
CARD = (Path(__file__).parents[2] / "docs/methods/stochastic_depth.md").read_text(encoding="utf-8")
BRANCH = "3.branch"
"""The only residual branch of `small_net`."""


class LeavesOut(Method):
    """Leaves out the branch in the given steps."""

    steps: tuple[int, ...] = ()

    def branch_factors(self, ctx):
        return {BRANCH: 0.0} if ctx.step in self.steps else {}


def resnet32():
    torch.manual_seed(0)
    return build_model("resnet32[width=0.25]", SHAPE, CLASSES)


def with_branch(branch):
    net = small_net()
    net[3].branch = branch
    return net


def drawn(method, steps, **context):
    """Return the factors of each step."""
    return [method.branch_factors(Context(None, SHAPE, CLASSES, 1, 1, step=step, **context)) for step in range(steps)]


def test_twenty_steps_equal_a_loop_written_by_hand_and_are_one_stage():
    trainer, records = fitted(StochasticDepth(), dataclasses.replace(RECIPE, epochs=5, weight_decay=1e-3), resnet32())

    model = resnet32().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1, momentum=0.9, weight_decay=1e-3)
    stages = [(f"layer{stage}", getattr(model, f"layer{stage}")) for stage in (1, 2, 3)]
    blocks = [(f"{name}.{index}.branch", block) for name, stage in stages for index, block in enumerate(stage)]
    step, left_out = 0, 0
    for epoch in range(5):
        for images, labels in SmallBatches(64, seed=1).epoch(epoch, 16):
            optimizer.param_groups[0]["lr"] = 0.05 * (1 - 0.9 * step / 20)
            optimizer.zero_grad()
            x = torch.relu(model.bn1(model.conv1(images)))
            for number, (name, block) in enumerate(blocks, start=1):
                stays = 1 - 0.5 * number / 15
                sum_of_block = x if block.downsample is None else block.downsample(x)
                if random_key(0, step, 0, "branch", name) / 2**63 >= 1 - stays:
                    sum_of_block = sum_of_block + block.branch(x) * (1 / stays)
                else:
                    left_out += 1
                x = torch.relu(sum_of_block)
            F.cross_entropy(model.fc(model.avgpool(x).flatten(1)), labels).backward()
            optimizer.step()
            step += 1
    assert step == trainer.ctx.step == 20
    assert left_out > 40
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trainer.model.state_dict()[name]), name
    assert [stage.steps for stage in StageList(records).stages()] == [20]


def test_memory_is_that_of_a_step_without_left_out_branches():
    """The first step, whose memory is counted, leaves out the branch: only its gradients are missing."""
    gradients = sum(parameter.numel() for parameter in small_net().get_submodule(BRANCH).parameters())
    whole, part = (fitted(LeavesOut(steps=steps), ONE_EPOCH) for steps in ((), (0,)))
    assert part[1][0]["step_memory_bytes"] == whole[1][0]["step_memory_bytes"] - 4 * gradients
    tensors = [trainer.model.state_dict()[f"{BRANCH}.1.num_batches_tracked"].item() for trainer, _ in (whole, part)]
    assert tensors == [4, 3]


def test_probabilities_rise_linearly_to_drop_and_factors_have_the_mean_1():
    method = StochasticDepth(drop=0.6)
    small_trainer(method, model=resnet32())
    factors = drawn(method, 4000)
    assert list(factors[0]) == [f"layer{stage}.{block}.branch" for stage in (1, 2, 3) for block in range(5)]
    for number, name in enumerate(factors[0], start=1):
        values = torch.tensor([of_step[name] for of_step in factors], dtype=torch.float64)
        dropped = 0.6 * number / 15
        assert values.max().item() == pytest.approx(1 / (1 - dropped))
        assert (values == 0).double().mean().item() == pytest.approx(dropped, abs=0.03)
        assert values.mean().item() == pytest.approx(1, abs=0.07)
    assert drawn(method, 8, seed=1) != factors[:8] == drawn(method, 8, rank=1)


def test_flops_of_left_out_branches_are_not_counted_but_a_step_s_cost_stays():
    """Two convolutions of 8 to 8 channels, 3x3, on 8x8 positions, in batches of 16 images."""
    trainer = small_trainer(LeavesOut(steps=(0,)), ONE_EPOCH)
    batches, costs, flops = trainer.batches(), [], []
    for _ in range(2):
        trainer.train_step(next(batches))
        costs.append(trainer.ledger.step_cost())
        flops.append(dict(trainer.ledger.train_flops))
    assert costs[0] == costs[1]
    step = costs[0]["step_flops"]
    saved = 2 * 3 * (2 * 8 * 8 * 9 * 64) * 16
    assert step["effective"] == step["dense"] > 2 * saved / 3
    assert flops[0] == {column: step[column] - (saved if column in COLUMNS[2:] else 0) for column in COLUMNS}
    assert flops[1] == {column: flops[0][column] + step[column] for column in COLUMNS}
    rows = {row["layer"]: row for row in csv.DictReader(io.StringIO(trainer.ledger.to_csv(1)))}
    for product in ("forward", "dgrad", "wgrad"):
        row = rows[f"{BRANCH}.3"]
        counted = [float(row[f"{product}_{column}"]) for column in COLUMNS]
        assert counted == [2 * saved / 6, 2 * saved / 6, saved / 6, saved / 6]
        assert float(rows["4"][f"{product}_executed"]) == float(rows["4"][f"{product}_dense"])


def test_products_outside_of_layers_are_left_out_with_their_branch():
    class Attends(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    trainer = small_trainer(LeavesOut(steps=(0,)), ONE_EPOCH, with_branch(Attends()))
    trainer.train_step(next(trainer.batches()))
    saved = trainer.ledger.train_flops["dense"] - trainer.ledger.train_flops["executed"]
    assert saved == 16 * sum(trainer.ledger.current[f"{BRANCH}:attention"].flops(product) for product in PRODUCTS) > 0


def test_a_left_out_branch_keeps_weights_momentum_and_statistics_and_nothing_else_does():
    trainer = small_trainer(LeavesOut(steps=(1,)), ONE_EPOCH)
    batches = trainer.batches()
    trainer.train_step(next(batches))

    def state():
        tensors = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        momentum = {
            f"{name}, momentum": trainer.optimizer.state[parameter]["momentum_buffer"].clone()
            for name, parameter in trainer.model.named_parameters()
        }
        return tensors | momentum

    before = state()
    trainer.train_step(next(batches))
    changed = {name for name, tensor in state().items() if not torch.equal(tensor, before[name])}
    assert {name for name in before if not name.startswith(BRANCH)} == changed


def test_evaluation_in_a_step_and_training_after_it_are_those_of_the_whole_network():
    trainer = small_trainer(LeavesOut(steps=(0,)), ONE_EPOCH)
    images, labels = next(SmallBatches(16, seed=1).epoch(0, 16))
    branch = trainer.model.get_submodule(BRANCH)
    whole = trainer.model.eval()(images)
    trainer.runner.transform_batch(images, labels)
    assert trainer.ctx.left_out == {BRANCH, *(f"{BRANCH}.{index}" for index in range(6))}
    assert torch.equal(trainer.model(images), whole)
    assert branch.train()(images[:, :1].expand(-1, 8, -1, -1)).shape == ()
    trainer.runner.end_step()
    assert not trainer.ctx.left_out
    assert "forward" not in vars(branch)


def test_a_branch_gets_back_the_forward_that_its_module_had():
    model = small_net()
    branch = model.get_submodule(BRANCH)
    branch.forward = own = lambda x: x
    hooks = apply(model, LeavesOut(steps=(0,)), input_shape=SHAPE, num_classes=CLASSES, epochs=1, batch_size=16)
    for _ in range(2):  # the second call replaces the first
        hooks.transform_batch(torch.zeros(16, *SHAPE), torch.zeros(16, dtype=torch.int64))
    assert branch.forward is not own
    hooks.end_step()
    assert branch.forward is own


def test_a_resumed_training_leaves_out_the_same_branches():
    assert_it_resumes(lambda **callbacks: small_trainer(StochasticDepth(drop=0.9), **callbacks))


def test_what_cannot_work_is_one_line():
    with pytest.raises(ValueError, match=r"^no branch of this model can be left out: none of its blocks declares"):
        small_trainer(StochasticDepth(), model=plain_net())
    with pytest.raises(ValueError, match="ignore leaves none out"):
        StochasticDepth(ignore=("3",))
    with pytest.raises(UsageError, match=r"^recipe\.execution=compile: depth leaves out other branches in each step"):
        check_execution("compile", "cpu", StochasticDepth, "depth")


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"3.brunch": 0.0}, "names '3.brunch'; the model has no such branch; did you mean '3.branch'?"),
        ({BRANCH: float("nan")}, "has nan for '3.branch'; factors must be finite"),
    ],
)
def test_wrong_factors_are_refused_by_name(factors, message):
    faulty = type("Faulty", (Method,), {"branch_factors": lambda self, ctx: factors})
    with pytest.raises(UsageError) as refused:
        small_trainer(faulty(), ONE_EPOCH).fit()
    assert str(refused.value) == f"branch_factors {message}"


def test_a_loop_that_does_not_begin_its_steps_is_refused():
    model = small_net()
    hooks = apply(model, StochasticDepth(), input_shape=SHAPE, num_classes=CLASSES, epochs=1, batch_size=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.attach(optimizer)
    images, labels = hooks.transform_batch(torch.zeros(16, *SHAPE), torch.zeros(16, dtype=torch.int64))
    F.cross_entropy(model(images), labels).backward()
    hooks.optimizer_step()
    with pytest.raises(UsageError, match=r"^hooks\.transform_batch was not called in step 1, so that StochasticDepth"):
        hooks.optimizer_step()


def test_it_is_a_way_to_train_without_pruning_and_no_control_of_another_method():
    assert not StochasticDepth.prunes
    assert not StochasticDepth().is_control()
    assert Method.prunes


@pytest.mark.parametrize("name", ["resnet32", "resnet56", "resnet9"])
def test_the_card_has_the_counted_share_of_flops_that_is_saved(name):
    model = build_model(name, (3, 32, 32), 10)
    flops = {layer: sum(map(cost.flops, PRODUCTS)) for layer, cost in count_layers(model, (3, 32, 32)).items()}
    branches = [f"{at}.branch" for at, module in model.named_modules() if hasattr(type(module), "residual_branch")]
    of_branches = [sum(flops[layer] for layer in flops if layer.startswith(f"{branch}.")) for branch in branches]
    saved = sum(0.5 * number / len(branches) * one for number, one in enumerate(of_branches, start=1))
    card = CARD.replace("\n", " ").replace("of the training FLOPs of", "of")
    assert f"{100 * saved / sum(flops.values()):.1f} % of `{name}`" in card
