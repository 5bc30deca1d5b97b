"""What data-parallel training communicates: counted from shapes, measured at the hook, and seen by torch's profiler."""

import pytest
import torch
from communicating import METHODS, RANKS, STEPS, on_rank
from gloo_threads import found_by_ranks
from small_methods import Nothing
from small_training import small_net

from suite.engine.cost.ledger import KeptGradients
from suite.errors import UsageError
from suite.ops import apply


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two ranks found, on the CPU."""
    folder = tmp_path_factory.mktemp("communication")
    return found_by_ranks(on_rank, folder, RANKS)


@pytest.mark.parametrize("method", METHODS)
def test_measured_bytes_are_the_counted_bytes_in_every_step(found, method):
    for one in found:
        for step in one[method]["steps"]:
            assert step["measured"].pop("start") == 0  # nothing but the start of the training is of this kind
            step["measured"].pop("bookkeeping", None)
            assert step["measured"] == step["counted"] | {"statistics": step["buffer_bytes"]}
            assert step["measured"]["gradients"] > 0


@pytest.mark.parametrize("method", METHODS)
def test_the_profiler_sees_as_many_elements_in_the_process_group(found, method):
    for one in found:
        for step in (one[method]["steps"][0], one[method]["steps"][-STEPS]):
            loss = 1
            assert step["seen"]["all_reduce"] == step["counted"]["gradients"] // 4 + loss
            assert step["seen"]["broadcast"] == step["buffers"]


def test_prunetrain_communicates_less_after_a_cut(found):
    steps = found[0]["prunetrain"]["steps"]
    sizes = [step["counted"]["gradients"] for step in steps]
    assert sizes == [4 * step["parameters"] for step in steps]
    assert sizes[0] == sizes[1] > sizes[-1]
    assert steps[0]["buffer_bytes"] > steps[-1]["buffer_bytes"]


def test_clicktrain_communicates_kept_gradients_after_hard_pruning(found):
    packed, unpacked = (found[0][name]["steps"] for name in ("clicktrain", "clicktrain, unpacked"))
    sizes = [step["counted"]["gradients"] for step in packed]
    masks = found[0]["clicktrain"]["kept"].values()
    kept = sum(int(mask.count_nonzero()) for mask in masks)
    masked = sum(mask.numel() for mask in masks) - kept
    first = 2 * STEPS + 1  # weights are masked at the end of the step before
    assert set(sizes[:first]) == {4 * packed[0]["parameters"]}
    assert set(sizes[first:]) == {sizes[0] - 4 * masked}
    assert masked > kept
    assert unpacked[-STEPS]["seen"]["all_reduce"] == sizes[0] // 4 + 1


def test_packing_changes_no_weight_of_a_training(found):
    for one in found:
        for packed, unpacked in zip(one["clicktrain"]["weights"], one["clicktrain, unpacked"]["weights"], strict=True):
            assert torch.equal(packed, unpacked)


@pytest.mark.parametrize("method", METHODS)
def test_bytes_of_all_reductions_are_gradients_and_decisions(found, method):
    for one in found:
        steps = [step["counted"] for step in one[method]["steps"]]
        assert one[method]["all_reduced"] >= sum(step["gradients"] + step["decisions"] for step in steps)


class Masked(Nothing):
    """Returns masks that a test gives it."""

    def kept_gradients(self, ctx):
        return self.masks


def kept(masks):
    hooks = apply(small_net(), Masked(), input_shape=(3, 8, 8), num_classes=4, epochs=1, batch_size=4)
    hooks.method.masks = masks
    return KeptGradients(hooks.method), hooks.ctx


def test_masks_are_counted_again_only_if_they_change():
    mask = torch.ones(8, 3, 3, 3, dtype=torch.bool)
    mask[0] = False
    gradients, ctx = kept({"0": mask})
    assert gradients.update(ctx)
    assert gradients.left_out == 4 * 27
    assert not gradients.update(ctx)
    ctx.layers["0"].weight.requires_grad_(False)
    gradients._method.masks = {"0": mask.clone()}
    assert gradients.update(ctx)
    assert gradients.left_out == 0


@pytest.mark.parametrize(
    ("name", "mask", "message"),
    [
        ("O", torch.ones(1), "names 'O', which is not a planned layer"),
        ("0", torch.ones(8, 3, 3, 3), "torch.float32 and shape (8, 3, 3, 3) for '0'"),
        ("0", torch.ones(8, dtype=torch.bool), "shape (8,) for '0', whose weight has the shape (8, 3, 3, 3)"),
    ],
)
def test_a_mask_that_does_not_fit_is_one_line(name, mask, message):
    gradients, ctx = kept({name: mask})
    with pytest.raises(UsageError) as error:
        gradients.update(ctx)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
