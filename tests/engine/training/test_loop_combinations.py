"""Every method in a loop of one's own, in every variant: the weights are those of the suite's own trainer.

The trainer takes one optimizer and one process where the loop takes several. Only the sum over ranks is rounded
differently; everything else is compared bit for bit.
"""

import dataclasses

import pytest
import torch
from gloo_threads import found_by_ranks
from own_loops import METHODS, Loop, net
from small_training import RECIPE, fitted

from suite.ops import restore

SMALL = dataclasses.replace(RECIPE, momentum=0.9, nesterov=False, weight_decay=0.0, epochs=3)
VARIANTS = {
    "plain": ({}, {}),
    "4 parts": ({"micro_batches": 4}, {}),
    "two optimizers": ({}, {"optimizers": 2}),
    "average": ({"ema": 0.8}, {"ema": 0.8}),
    "loss scale": ({}, {"dtype": torch.float16}),
    "frozen": ({}, {}),
    "all": ({"micro_batches": 2, "ema": 0.8}, {"optimizers": 2, "ema": 0.8, "dtype": torch.bfloat16}),
}

PAIRS = [
    ("dense", "plain"),
    ("sdgp", "4 parts"),
    ("sdgp", "all"),
    ("prunetrain", "plain"),
    ("prunetrain", "frozen"),
    ("prunetrain-proximal", "two optimizers"),
    ("prunetrain-proximal", "loss scale"),
    ("clicktrain", "all"),
    ("clicktrain", "average"),
    ("masked", "all"),
]


def both(name, variant):
    """Return the trainer and the loop after their trainings."""
    changes, options = VARIANTS[variant]
    recipe, frozen = dataclasses.replace(SMALL, **changes), variant == "frozen"
    dtype = options.get("dtype", torch.float32)
    trainer, _ = fitted(METHODS[name](), recipe, net(frozen), dtype=dtype)
    return trainer, Loop(METHODS[name](), recipe, net(frozen), **options).fit()


@pytest.mark.parametrize(("name", "variant"), PAIRS)
def test_a_loop_of_ones_own_trains_as_the_trainer(name, variant):
    trainer, loop = both(name, variant)
    own = loop.average.module if loop.average else loop.model
    shapes = [tuple(one.shape) for one in net().parameters()]
    for (key, wanted), found in zip(trainer.model.named_parameters(), own.parameters(), strict=True):
        assert torch.equal(found, wanted), (key, (found - wanted).abs().max())
    if name.startswith("prunetrain"):
        assert [tuple(one.shape) for one in own.parameters()] != shapes
    if name in ("clicktrain", "masked"):
        assert min(float((own[index].weight == 0).float().mean()) for index in (2, 4)) > 0.3
    assert loop.hooks.ctx.step == trainer.ctx.step == 12


@pytest.mark.parametrize("name", ["sdgp", "prunetrain-proximal"])
def test_a_compiled_loop_draws_the_masks_of_an_eager_one_and_trains_alike(name):
    eager, compiled = (Loop(METHODS[name](), SMALL, net(), compiled=one).fit() for one in (False, True))
    for found, wanted in zip(compiled.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def on_rank(rank, folder):
    """Train methods on one of two ranks, with two parts, two optimizers and an average; return the weights."""
    found = {}
    for name in ON_RANKS:
        loop = Loop(METHODS[name](), IN_PARTS, net(), optimizers=2, ema=0.8, ranks=2).fit()
        found[name] = [[one.detach() for one in own.parameters()] for own in (loop.model, loop.average.module)]
        torch.save(restore(loop.model), f"{folder}/{name}-{rank}.pt")
    return found


ON_RANKS = ("sdgp", "prunetrain", "clicktrain")
IN_PARTS = dataclasses.replace(SMALL, micro_batches=2)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Folder of the models and weights of two ranks."""
    folder = tmp_path_factory.mktemp("loops")
    return folder, found_by_ranks(on_rank, folder, 2)


@pytest.mark.parametrize("name", ON_RANKS)
def test_two_ranks_with_two_parts_train_as_four_parts_of_the_trainer(name, ranks):
    folder, found = ranks
    assert all(map(torch.equal, found[0][name][0], found[1][name][0]))
    trainer, _ = fitted(METHODS[name](), dataclasses.replace(SMALL, micro_batches=4), net())
    for one, wanted in zip(found[0][name][0], trainer.model.parameters(), strict=True):
        torch.testing.assert_close(one, wanted, rtol=0, atol=1e-5)
    # The model can be saved whole on every rank.
    for rank in range(2):
        whole = torch.load(folder / f"{name}-{rank}.pt", weights_only=False)
        assert all(map(torch.equal, whole.parameters(), found[0][name][0]))
        assert {type(layer).__module__.partition(".")[0] for layer in whole.modules()} == {"torch"}
