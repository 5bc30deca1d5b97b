"""RigL and SET: which connections are dropped and grown, and what an update leaves as it is."""

import dataclasses
import math
import random
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from small_training import RECIPE, SHAPE, SmallBatches, assert_it_resumes, fitted, small_net, small_trainer
from torch import nn

from methods.rigl import RigL, replaced
from suite.method import SKIP_STEP
from suite.ops import apply

OFTEN = {
    "every": 3,
    "sparsity": 0.75,
    "backend": "masked",
}  # of 12 steps: updates in steps 3 and 6, before 0.75 of the training
SET = {"grow": "random"}
TWIN = dict(RigL.random_twin)


def test_an_update_by_hand():
    active = torch.tensor([[True, True, True, True], [False, False, False, False]])
    drop = torch.tensor([[4.0, 1.0, 3.0, 2.0], [9.0, 9.0, 9.0, 9.0]])
    grow = torch.tensor([[8.0, 7.0, 9.0, 1.0], [2.0, 6.0, 0.0, 5.0]])
    # int(0.5 * 4) = 2 are dropped, those with 1 and 2; of the six others, those with 7, which was just dropped, and 6.
    assert replaced(active, 0.5, drop, grow).tolist() == [[True, True, True, False], [False, True, False, False]]
    assert torch.equal(replaced(active, 0.24, drop, grow), active)  # int(0.96) = 0
    zeros = torch.zeros(2, 4)
    assert (
        replaced(active, 0.5, zeros, zeros).sum() == 4
    )  # masked weights with equal scores are not kept in their place


def slow(active, share, drop, grow):
    """Sort lists: `_get_update_op` of the authors' code, without random numbers added to the scores."""
    active, drop, grow = (value.flatten().tolist() for value in (active, drop, grow))
    count = sum(active)
    number = int(share * count)
    kept = sorted((index for index in range(len(active)) if active[index]), key=lambda index: -drop[index])
    kept = set(kept[: count - number])
    others = sorted(set(range(len(active))) - kept, key=lambda index: -grow[index])
    return [index in kept | set(others[:number]) for index in range(len(active))]


def test_updates_are_those_of_a_slow_definition():
    rng = random.Random(0)
    for case in range(200):
        generator = torch.Generator().manual_seed(case)
        shape = (rng.randint(1, 6), rng.randint(1, 6), *((3, 3) if rng.random() < 0.5 else ()))
        active = torch.rand(shape, generator=generator) < rng.random()
        drop, grow = torch.rand(shape, generator=generator) * active, torch.rand(shape, generator=generator)
        share = rng.random()
        found = replaced(active, share, drop, grow)
        assert found.flatten().tolist() == slow(active, share, drop, grow), case
        assert found.sum() == active.sum()


class Update:
    """The step of an update, by a method on one weight and an optimizer that has trained it."""

    def __init__(self, method, weight, active, progress=0.25, step=100, rank=0, seed=0, optimizer="sgd"):
        self.method, self.weight = method, nn.Parameter(weight * active)
        made = {"sgd": torch.optim.SGD([self.weight], lr=0.1, momentum=0.9), "adam": torch.optim.Adam([self.weight])}
        self.optimizer = made[optimizer]
        self.weight.grad = torch.ones_like(weight)
        self.optimizer.step()
        layers = {"layer": SimpleNamespace(weight=self.weight)}
        method.weights = lambda ctx: {"layer": self.weight}
        method.end_updates = lambda ctx: setattr(method, "_is_final", True)
        method.set_masks({"layer": active})
        self.ctx = SimpleNamespace(
            step=step,
            progress=progress,
            seed=seed,
            rank=rank,
            layers=layers,
            optimizer=self.optimizer,
            replan=lambda: None,
        )

    def run(self, gradient):
        self.weight.grad = gradient.clone()
        skipped = self.method.before_optimizer_step(self.ctx)
        self.method.after_optimizer_step(self.ctx)
        return skipped, self.method.masks["layer"]


def random_case(size=(8, 5, 3, 3), seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight, gradient = torch.randn(size, generator=generator), torch.randn(size, generator=generator)
    return weight, torch.rand(size, generator=generator) < 0.3, gradient


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_new_weights_and_their_momentum_are_zero_and_no_weight_that_stays_is_changed(optimizer):
    weight, active, gradient = random_case()
    update = Update(RigL(), weight, active, optimizer=optimizer)
    state = update.optimizer.state[update.weight]
    names = ["momentum_buffer"] if optimizer == "sgd" else ["exp_avg", "exp_avg_sq"]
    before, states = update.weight.detach().clone(), {name: state[name].clone() for name in names}
    skipped, mask = update.run(gradient)
    assert skipped is SKIP_STEP
    grown = mask & ~active
    count = int(active.sum())
    assert 0 < grown.sum() <= int(0.15 * (1 + math.cos(math.pi * 0.25 / 0.75)) * count)
    assert mask.sum() == count
    share = 0.15 * (1 + math.cos(math.pi * 0.25 / 0.75))
    assert mask.flatten().tolist() == slow(active, share, before.abs(), gradient.abs())
    assert torch.equal(update.weight, torch.where(mask & ~grown, before, torch.zeros(())))
    for name in names:
        assert torch.equal(state[name], torch.where(grown, torch.zeros(()), states[name]))
        assert states[name][grown].all()
    if optimizer == "adam":
        assert state["step"] == 1


@pytest.mark.parametrize(
    ("progress", "step", "updates"), [(0.25, 100, True), (0.25, 101, False), (0.75, 300, False), (0.0, 0, False)]
)
def test_masks_change_in_every_hundredth_step_until_three_quarters(progress, step, updates):
    weight, active, gradient = random_case()
    update = Update(RigL(), weight, active, progress, step)
    skipped, mask = update.run(gradient)
    assert (skipped is SKIP_STEP) is updates
    assert torch.equal(mask, active) is not updates
    assert torch.equal(update.weight.grad != 0, mask)
    density = update.method.density("layer", update.ctx)
    assert density.forward == density.dgrad == pytest.approx(float(active.float().mean()))
    assert density.wgrad == (1.0 if updates else density.forward)


def test_random_connections_follow_seed_and_step_but_not_the_rank_and_gradients_do_not_matter():
    weight, active, gradient = random_case()

    def mask(parameters, gradient=gradient, **more):
        return Update(RigL(**parameters), weight, active, **more).run(gradient)[1]

    first = mask(SET)
    assert torch.equal(first, mask(SET, -gradient.flip(0)))
    assert torch.equal(first, mask(SET, rank=1))
    assert not torch.equal(first, mask(SET, seed=1))
    assert not torch.equal(first, mask(SET, step=200))
    # SET drops what RigL drops; the twin drops others, and as many.
    share = 0.15 * (1 + math.cos(math.pi * 0.25 / 0.75))
    smallest = Update(RigL(), weight, active).weight.abs().where(active, torch.tensor(math.inf)).flatten().argsort()
    dropped = smallest[: int(share * int(active.sum()))]
    kept = active.flatten().clone()
    kept[dropped] = False
    assert first.flatten()[kept].all()
    twin = mask(TWIN)
    assert not twin.flatten()[kept].all()
    assert twin.sum() == first.sum() == active.sum()
    assert (
        Update(RigL(**SET), weight, active).method.density("layer", SimpleNamespace(step=100, progress=0.25)).wgrad < 1
    )
    assert RigL(**TWIN).is_control()
    assert not RigL(**SET).is_control()


@pytest.mark.parametrize("parameters", [{}, SET, TWIN, {"fraction": 0.0}], ids=str)
def test_a_training_keeps_the_number_of_connections(parameters):
    first = small_trainer(RigL(**OFTEN, **parameters)).runner.method.masks
    trainer, records = fitted(RigL(**OFTEN, **parameters))
    masks = trainer.runner.method.masks
    assert sorted(masks) == ["3.branch.0", "3.branch.3", "4"]  # not the first layer, not the last
    for name, mask in masks.items():
        assert mask.sum() == first[name].sum()
        assert torch.equal(mask, first[name]) is (parameters == {"fraction": 0.0})
        assert not trainer.ctx.layers[name].weight[~mask].any()
    assert all(record["method"]["sparsity"] == pytest.approx(0.75, abs=5e-3) for record in records)


@pytest.mark.parametrize("parameters", [{}, TWIN], ids=str)
def test_a_resumed_training_ends_with_equal_bits(parameters):
    adamw = dataclasses.replace(RECIPE, optimizer="adamw", nesterov=False, learning_rate=1e-3)
    assert_it_resumes(lambda **callbacks: small_trainer(RigL(**OFTEN, **parameters), adamw, **callbacks))


def test_the_first_masks_are_equal_on_all_ranks():
    masks = []
    for rank, seed in ((0, 0), (1, 0), (0, 1)):
        method = RigL()
        method.weights = lambda ctx: {"layer": torch.zeros(20, 20)}
        method.setup(SimpleNamespace(seed=seed, rank=rank, step=0, device=torch.device("cpu")))
        masks.append(method.masks["layer"])
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_masks_are_those_of_rigl_torch():
    """The package `rigl-torch` of PyPI, on the same weights, gradients and masks; it has `uniform` only."""
    rigl_torch = pytest.importorskip("rigl_torch.RigL")
    torch.manual_seed(0)
    theirs, ours = small_net(), small_net()
    ours.load_state_dict(theirs.state_dict())
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = rigl_torch.RigLScheduler(theirs, optimizer, dense_allocation=0.25, T_end=9, delta=2, alpha=0.3)
    masked = {"3.branch.0": 1, "3.branch.3": 2, "4": 3}  # their first layer and the linear one are dense
    method = RigL(sparsity=0.75, distribution="uniform", every=2, until=0.75, backend="masked")
    hooks = apply(ours, method, input_shape=SHAPE, num_classes=4, epochs=3, batch_size=16)
    method.set_masks({name: scheduler.backward_masks[index].clone() for name, index in masked.items()})
    own = torch.optim.SGD(ours.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    hooks.attach(own)
    # They count a step before they look whether it updates, and we begin with step 0.
    hooks.ctx.step, compared = 1, 0
    for images, labels in [batch for epoch in range(3) for batch in SmallBatches(64, seed=1).epoch(epoch, 16)]:
        hooks.ctx.progress = hooks.ctx.step / 12
        for net in (theirs, ours):
            net.zero_grad()
            F.cross_entropy(net(images.contiguous()), labels).backward()  # they take no other format
        if scheduler():
            optimizer.step()
        else:
            compared += 1
        hooks.optimizer_step()
        for name, index in masked.items():
            assert torch.equal(method.masks[name], scheduler.backward_masks[index]), (hooks.ctx.step, name)
        for (name, one), other in zip(theirs.named_parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=name)
    assert compared == 4


def test_defaults_and_refusals():
    assert RigL.defaults("cifar10", "paper") == {}
    assert RigL.defaults("cifar10", "smoke") == {"every": 5}
    assert RigL().distribution == "erdos_renyi"
    with pytest.raises(
        ValueError, match="structure is channel; single weights are dropped and grown: use unstructured"
    ):
        RigL(structure="channel")
    with pytest.raises(ValueError, match="distribution is global; the scores of the first connections are random"):
        RigL(distribution="global")
    with pytest.raises(ValueError, match="grow is 'momentum'; allowed: gradient, random"):
        RigL(grow="momentum")
