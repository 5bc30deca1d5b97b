"""Residual branches: which ones can be removed, and what a removed branch leaves."""

import pytest
import torch
from cuttable_nets import SHAPE, reading, silence, step, trained
from torch import nn

from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.surgery import ChannelConstant, apply_plan
from suite.method import ReconfigPlan
from tasks.models.resnet9 import resnet9


def test_a_branch_whose_dead_channels_would_leave_no_constant_is_fixed():
    class Deep(nn.Module):
        residual_branch = "branch"

        def __init__(self, last):
            super().__init__()
            chain = [nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), last]
            self.branch = nn.Sequential(*chain)

        def forward(self, x):
            return x + self.branch(x)

    fixed = find_index_spaces(reading(Deep(nn.Conv2d(4, 4, 3, padding=1)), nn.Flatten(), nn.Linear(256, 2)), SHAPE)
    assert not fixed.removable_branches
    assert "pads" in fixed.fixed_branches["1.branch"]
    assert not any(space.may_be_empty for space in fixed.values())
    free = find_index_spaces(reading(Deep(nn.Conv2d(4, 4, 1)), nn.Flatten(), nn.Linear(256, 2)), SHAPE)
    assert free.removable_branches["1.branch"].spaces == ("1.branch.0", "1.branch.2")


class Pooled(nn.Module):
    """A branch with a pooling in the middle, whose output may also depend on its input directly."""

    residual_branch = "branch"

    def __init__(self, pool):
        super().__init__()
        self.branch = nn.Sequential(
            *(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
            *(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), pool),
        )

    def forward(self, x):
        return x + self.branch(x)


@pytest.mark.parametrize(
    ("pool", "removable"),
    [
        (nn.AvgPool2d(3, 1, 1), False),
        (nn.AvgPool2d(3, 1, 1, count_include_pad=False), True),
        (nn.MaxPool2d(3, 1, 1), True),
    ],
)
def test_a_branch_with_a_pooling_is_removable_where_the_padding_leaves_no_border(pool, removable):
    torch.manual_seed(0)
    model = reading(Pooled(pool), nn.Flatten(), nn.Linear(256, 2)).double().eval()
    spaces = find_index_spaces(model, SHAPE)
    assert ("1.branch" in spaces.removable_branches) == removable
    assert spaces["1.branch.0"].may_be_empty == removable
    if not removable:
        assert "behind a pooling that pads" in spaces.fixed_branches["1.branch"]
        return
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.bias, module.running_mean):
                tensor.data.normal_()
    for layer in (0, 3):
        model[1].branch[layer].weight.data.zero_()
    images = torch.randn(2, *SHAPE, dtype=torch.float64)
    before = model(images)
    apply_plan(model, ReconfigPlan(removed_branches=("1.branch",)), spaces, None)
    torch.testing.assert_close(model(images), before, rtol=1e-12, atol=1e-12)


def test_a_branch_that_hands_its_input_on_is_not_removable():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x):
            return torch.relu(x) + self.last(self.first(x))

    model = Pooled(nn.Identity())
    model.branch = Inner()
    spaces = find_index_spaces(reading(model, nn.Flatten(), nn.Linear(256, 2)), SHAPE)
    assert not spaces.removable_branches
    assert "or with the input" in spaces.fixed_branches["1.branch"]


def dead_branch(net, branch, inner=-1):
    """Return a trained net in which one inner space of a branch is dead, and that branch."""
    model, spaces, images = trained(net)
    branch = spaces.removable_branches[branch]
    name = branch.spaces[inner]
    silence(model, spaces, {name: spaces[name].original})
    return model, spaces, images, branch


@pytest.mark.parametrize(
    ("net", "branch", "inner"),
    [
        ("resnet9", "residual1.branch", 0),
        ("basic", "3.branch", 0),
        ("basic", "5.branch", 0),  # the first of its stage
        ("bottleneck", "3.branch", 0),
        ("bottleneck", "4.branch", 1),
        ("grouped", "7.branch", 0),
    ],
)
def test_prunetrain_7_a_dead_branch_leaves_its_constant_and_the_outputs(net, branch, inner):
    model, spaces, images, branch = dead_branch(net, branch, inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)  # fills the momentum without changing weights
    step(model.train(), optimizer, images)
    inside = [id(parameter) for parameter in model.get_submodule(branch.name).parameters()]
    assert set(inside) <= {id(parameter) for parameter in optimizer.state}
    before = model.eval()(images)
    in_training = net == "basic"
    plan = ReconfigPlan(removed_branches=(branch.name,))
    index_map = apply_plan(model.train(in_training), plan, spaces, optimizer)

    left = model.get_submodule(branch.name)
    assert left.training == in_training
    torch.testing.assert_close(model.eval()(images), before, rtol=1e-12, atol=1e-12)
    assert isinstance(left, ChannelConstant)
    assert left.constant.abs().max() > 0.1
    saved, left.constant = left.constant, torch.zeros_like(left.constant)
    assert not torch.allclose(model(images), before)  # the constant is needed to preserve the outputs
    left.constant = saved
    # No trace of the branch remains.
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert not set(inside) & set(held)
    assert set(held) == {id(parameter) for parameter in model.parameters()}
    assert not set(inside) & {id(parameter) for parameter in optimizer.state}
    assert branch.name not in spaces.removable_branches
    assert not any(name in spaces for name in branch.spaces)
    assert not index_map.exists(branch.layers[0])
    assert index_map.exists("")
    step(model.train(), optimizer, images)


def test_channels_go_with_a_branch_and_after_it():
    model, spaces, images, branch = dead_branch("resnet9", "residual1.branch")
    silence(model, spaces, {"down.conv": [0, 1, 5]})
    before = model.eval()(images)
    kept = [i for i in spaces["down.conv"].original if i not in (0, 1)]
    apply_plan(model, ReconfigPlan(kept={"down.conv": kept}, removed_branches=(branch.name,)), spaces, None)
    torch.testing.assert_close(model(images), before, rtol=1e-12, atol=1e-12)
    apply_plan(model, ReconfigPlan(kept={"down.conv": [i for i in kept if i != 5]}), spaces, None)
    torch.testing.assert_close(model(images), before, rtol=1e-12, atol=1e-12)
    assert len(model.residual1.branch.constant) == spaces["down.conv"].size == len(kept) - 1
    # The pruned model can be traced again.
    again = find_index_spaces(model, (3, 16, 16))
    assert {name: space.size for name, space in again.items()} == {name: space.size for name, space in spaces.items()}


def test_a_branch_that_is_not_dead_leaves_what_its_last_normalisation_emits_for_zero():
    model, spaces, _ = trained("resnet9")
    apply_plan(model, ReconfigPlan(removed_branches=("residual1.branch",)), spaces, None)
    norm = trained("resnet9")[0].residual1.branch.block2.norm
    emitted = norm.bias - norm.weight * norm.running_mean / (norm.running_var + norm.eps).sqrt()
    torch.testing.assert_close(model.residual1.branch.constant, emitted.relu(), rtol=1e-12, atol=1e-12)


def test_branch_whose_dead_end_is_no_constant_is_refused_and_left():
    """Only the first convolution is zero: the second one pads the constant behind it, which leaves a border."""
    torch.manual_seed(0)
    model = resnet9(width=1 / 16)
    model.residual2.branch.block1.conv.weight.data.zero_()
    model.residual2.branch.block1.norm.bias.data.fill_(1.0)
    before = {name: tensor.shape for name, tensor in model.state_dict().items()}
    spaces = find_index_spaces(model, (3, 16, 16))
    plan = ReconfigPlan(removed_branches=("residual2.branch",))
    with pytest.raises(ValueError, match="its output is not constant"):
        apply_plan(model, plan, spaces, None)
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == before
    assert "residual2.branch" in spaces.removable_branches
