"""Masks that stay as they are at last: when kernels skip masked weights, in which layers, with equal results."""

import pytest
import torch
from small_training import assert_it_resumes, fitted, small_net, small_trainer
from torch import nn

from kernels.sparse_conv.dispatch import available
from methods.backends.autotune import Fastest, Timing
from methods.gmp import GMP
from methods.masks import backends
from methods.rigl import RigL

METHODS = {  # both have their last update in step 6 of 12; from step 8 on, kernels skip
    "gmp": lambda **given: GMP(every=3, start=0.25, end=0.6, sparsity=0.75, **given),
    "rigl": lambda **given: RigL(every=3, until=0.6, sparsity=0.75, distribution="uniform", **given),
}
skips = pytest.mark.skipif(not available(torch.device("cpu")), reason="no kernels that skip weights")


def executed(records):
    return [record["step_flops"]["executed"] / record["step_flops"]["dense"] for record in records]


@skips
@pytest.mark.parametrize("name", METHODS)
def test_kernels_skip_masked_weights_once_masks_stay_with_equal_results(name):
    masked, records = fitted(METHODS[name](backend="masked"))
    assert executed(records) == [1.0, 1.0, 1.0]
    skipping, records = fitted(METHODS[name](backend="skipping"))
    assert executed(records)[:2] == [1.0, 1.0]
    assert executed(records)[2] < 0.35
    assert records[2]["backends"] == {
        "0": "torch", "3.branch.0": "skipping", "3.branch.3": "skipping", "4": "skipping", "8": "torch"
    }  # fmt: skip
    for one, other in zip(masked.model.parameters(), skipping.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    method = skipping.runner.method
    assert method.kept_gradients(skipping.ctx) == method.masks


@skips
def test_a_resumed_training_ends_with_equal_bits():
    given = {"every": 3, "until": 0.4, "sparsity": 0.75, "backend": "skipping"}  # final in the second of three epochs
    assert_it_resumes(lambda **callbacks: small_trainer(RigL(**given), **callbacks))


@skips
def test_auto_asks_by_density_once_in_the_first_epoch_and_leaves_other_layers_to_torch(monkeypatch):
    asked = []

    def fastest(names, prepare, layer, geometry, images, size, dtype, structure, hardware_id):
        kept, _ = prepare()
        asked.append((layer.name, dict(structure), kept.float().mean().item()))
        return Fastest("skipping", {name: Timing(1, 1, 1) for name in names}, 15)

    monkeypatch.setattr(backends, "fastest", fastest)
    model = small_net()
    model[4] = nn.Conv2d(8, 8, 1)
    trainer, records = fitted(METHODS["gmp"](), model=model)
    # Both convolutions of the branch have one shape and one share; the 1x1 convolution is torch's.
    assert asked == [("3.branch.0", {"share": 0.25, "structure": "unstructured"}, 0.25)]
    assert [*records[0]["method"]["choices"]] == ["3.branch.0", "3.branch.3"]
    assert records[2]["backends"]["4"] == "torch"
    assert records[2]["backends"]["3.branch.3"] == "skipping"
    trainer.runner.method.choose_again(trainer.ctx)
    assert len(asked) == 2


@skips
def test_the_question_has_a_share_that_is_equal_for_all_seeds(monkeypatch):
    asked = []
    monkeypatch.setattr(
        backends.MaskedBackends, "choose", lambda self, ctx, structures, example: asked.append(structures)
    )
    small_trainer(GMP(distribution="global")).runner.method._choose(small_trainer(GMP()).ctx)
    assert {structure["share"] for structure in asked[-1].values()} == {0.1}
    model = small_net()
    model[4], model[8] = nn.Conv2d(8, 24, 3), nn.Linear(24, 4)
    rigl = small_trainer(RigL(sparsity=0.5), model=model)
    rigl.runner.method._choose(rigl.ctx)
    assert len({structure["share"] for structure in asked[-1].values()}) == 2
    for name, structure in asked[-1].items():
        assert structure["share"] == pytest.approx(float(rigl.runner.method.masks[name].float().mean()), abs=2e-3)


@skips
def test_a_weight_that_two_layers_read_is_not_skipped():
    model = small_net()
    model[3].branch[3].weight = model[3].branch[0].weight
    _, records = fitted(METHODS["gmp"](backend="skipping"), model=model)
    assert [name for name, backend in records[2]["backends"].items() if backend == "skipping"] == ["4"]


@skips
def test_grouped_convolutions_are_not_skipped():
    model = small_net()
    model[4] = nn.Conv2d(8, 8, 3, padding=1, groups=2)
    _, records = fitted(METHODS["gmp"](backend="skipping"), model=model)
    assert [name for name, backend in records[2]["backends"].items() if backend == "skipping"] == [
        "3.branch.0",
        "3.branch.3",
    ]
