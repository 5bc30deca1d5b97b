"""Early-Bird tickets: when looks are made, when a ticket is drawn, and how the training goes on."""

import dataclasses
import random

import pytest
import torch
from small_training import RECIPE, SHAPE, assert_it_resumes, fitted, small_net, small_trainer

from methods.earlybird import EarlyBird
from suite.ops import apply

FIVE = dataclasses.replace(RECIPE, epochs=5)  # 20 steps
METHOD = {"strength": 0.01, "ratio": 0.5, "look_every": 0.05, "latest": 0.8}


def start(**parameters):
    torch.manual_seed(0)
    sizes = {"input_shape": SHAPE, "num_classes": 4, "epochs": 10, "batch_size": 16}
    return apply(small_net(), EarlyBird(**METHOD | parameters), **sizes)


def look(hooks, kept, progress):
    """Look when these of the 16 channels have large scales: 0 to 7 those of the residual stage, others the block's."""
    model, scales = hooks.model, torch.full((16,), 0.1)
    scales[list(kept)] = 1.0
    model[1].weight.data, model[3].branch[4].weight.data = scales[:8].clone(), torch.zeros(8)
    model[3].branch[1].weight.data = scales[8:].clone()
    hooks.ctx.progress = progress
    hooks.method.look(hooks.ctx)


FIRST = (0, 1, 2, 3, 8, 9, 10, 11)
ONE_OTHER = (0, 1, 2, 4, 8, 9, 10, 11)  # two of 16 entries differ


def test_the_newest_mask_is_compared_with_each_of_the_four_before_it():
    """Neighbours are near each other, and the newest is far from the oldest: no ticket (`cal_dist` of `main.py`)."""
    hooks = start(distance=2 / 16)
    walk = [(*range(n, n + 4), 8, 9, 10, 11) for n in range(5)]  # each differs in two entries from the one before
    for number, kept in enumerate(walk):
        look(hooks, kept, 0.05 * (number + 1))
    assert hooks.method.distances == [8 / 16, 6 / 16, 4 / 16, 2 / 16]
    assert hooks.method.ticket is None
    for number in range(2):
        look(hooks, walk[-1], 0.05 * (number + 6))
    assert hooks.method.distances == [4 / 16, 2 / 16, 0, 0]
    look(hooks, walk[-1], 0.4)
    assert hooks.method.distances == [2 / 16, 0, 0, 0]
    assert hooks.method.ticket.nonzero().flatten().tolist() == sorted(walk[-1])


def test_a_ticket_needs_five_masks_and_may_differ_by_the_distance():
    hooks = start(distance=2 / 16)
    for number in range(4):
        look(hooks, FIRST, 0.05 * (number + 1))
        assert hooks.method.ticket is None
    look(hooks, ONE_OTHER, 0.25)
    assert hooks.method.ticket.nonzero().flatten().tolist() == sorted(ONE_OTHER)
    near = start(distance=1.9 / 16)
    for number, kept in enumerate([FIRST] * 4 + [ONE_OTHER]):
        look(near, kept, 0.05 * (number + 1))
    assert near.method.ticket is None


def test_the_network_is_cut_by_the_ticket_at_the_end_of_the_epoch():
    hooks = start(distance=2 / 16)
    for number in range(5):
        look(hooks, FIRST, 0.05 * (number + 1))
    look(hooks, (0, 1, 2, 5, 8, 9, 10, 11), 0.3)  # no look any more
    hooks.ctx.epochs_done = 3
    assert hooks.method.reconfigure(hooks.ctx).kept == {"0": [0, 1, 2, 3], "3.branch.0": [0, 1, 2, 3]}
    assert hooks.method.reconfigure(hooks.ctx) is None
    hooks.method.is_cut, hooks.method.round_to = False, 5  # which brings back the strongest of the others
    assert hooks.method.reconfigure(hooks.ctx).kept == {"0": [0, 1, 2, 3, 5], "3.branch.0": [0, 1, 2, 3, 4]}


def test_looks_follow_the_first_step_at_each_multiple():
    hooks, seen = start(look_every=0.1), []
    for step in range(40):
        hooks.ctx.progress = step / 40
        before = hooks.method.looks
        hooks.method.after_optimizer_step(hooks.ctx)
        seen += [step] * (hooks.method.looks > before)
    assert seen == [4, 8, 12, 16, 20][: len(seen)]
    assert len(seen) == 5  # equal masks: the fifth draws
    late = start(look_every=0.1)
    late.ctx.progress = 0.55  # steps were skipped
    late.method.after_optimizer_step(late.ctx)
    assert (late.method.looks, len(late.method.newest)) == (5, 1)


def slow(masks, distance):
    """Return the index of the mask that is drawn, as the authors' class does with lists."""
    queue = []
    for number, mask in enumerate(masks):
        queue = [*queue, mask][-5:]
        if len(queue) == 5:
            distances = [sum(a != b for a, b in zip(queue[-1], other, strict=True)) / len(mask) for other in queue[:-1]]
            if all(value <= distance for value in distances):
                return number
    return None


def test_tickets_are_those_of_the_slow_definition():
    hooks, draw, drawn = start(), random.Random(1), []
    method = hooks.method
    for case in range(200):
        method.setup(hooks.ctx)
        method.distance = draw.choice([0.0, 0.125, 0.25])
        kept, masks, found = set(draw.sample(range(16), 8)), [], None
        for number in range(9):
            if draw.random() < 0.5:
                kept.remove(draw.choice(sorted(kept)))
                kept.add(draw.choice(sorted(set(range(16)) - kept)))
            masks.append([index in kept for index in range(16)])
            look(hooks, kept, 0.05 * (number + 1))
            found = number if found is None and method.ticket is not None else found
        assert found == slow(masks, method.distance), case
        drawn.append(found)
    assert len(set(drawn)) > 4


def test_without_a_ticket_the_present_mask_cuts_at_the_latest_moment():
    method = EarlyBird(**METHOD | {"latest": 0.5})
    method.distance = -1.0
    trainer, records = fitted(method, FIVE)
    assert [record["method"]["cut"] for record in records] == [False, False, True, True, True]
    assert not records[-1]["method"]["drawn"]
    assert sum(space.size for space in trainer.ctx.spaces.values() if not space.frozen) < 24


def test_the_schedule_begins_again_with_the_initial_weights():
    rates = []
    method = EarlyBird(**METHOD | {"distance": 1.0, "restart": True})
    trainer = small_trainer(method, FIVE, on_epoch=lambda record: rates.append(record["learning_rate"]))
    initial, finish_epoch, cuts = trainer.model[3].branch[0].weight.detach().clone(), trainer.finish_epoch, []

    def finish_and_compare():
        if reconfigured := finish_epoch():
            (plan,) = trainer.runner.reconfigurations
            cuts.append(trainer.ctx.epochs_done)
            kept = initial[plan.kept["3.branch.0"]][:, plan.kept["0"]]
            assert torch.equal(trainer.model[3].branch[0].weight, kept)
            assert trainer.model[1].running_mean.abs().max() == 0
            assert not trainer.optimizer.state
        return reconfigured

    trainer.finish_epoch = finish_and_compare
    trainer.fit()
    assert cuts == [2]  # the fifth look follows the sixth of 20 steps
    assert len(rates) == 2 + 5
    assert rates[2:4] == rates[:2]


def test_a_resumed_training_ends_with_equal_bits():
    """It is cut after the second epoch; the initial weights have to be there again."""
    method = METHOD | {"distance": 1.0, "restart": True}
    assert_it_resumes(lambda **callbacks: small_trainer(EarlyBird(**method), RECIPE, **callbacks), after=(1, 2))


def test_settings_without_an_effect_are_refused():
    EarlyBird(look_every=0.06, latest=0.3)
    with pytest.raises(ValueError, match=r"the 5th look, .* would come after latest=0.3: take at most 0.06"):
        EarlyBird(look_every=0.1, latest=0.3)
    with pytest.raises(ValueError, match="restart=true begins with a new state of the optimizer"):
        EarlyBird(restart=True, momentum="kept")
