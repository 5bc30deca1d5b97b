"""Several processes that train one model: a user's own loop under `torch.distributed`."""

import pytest
import torch
import torch.nn.functional as F
from gloo_threads import found_by_ranks
from small_methods import RandomChannels
from small_training import SmallBatches
from two_ranks import BATCH, RANKS, on_rank, planned

from suite.engine.training.ranks import Ranks


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two ranks found, on the CPU."""
    folder = tmp_path_factory.mktemp("ranks")
    return found_by_ranks(on_rank, folder, RANKS)


def test_two_ranks_draw_the_masks_of_two_micro_batches(found):
    model, hooks, optimizer = planned(RandomChannels(), 0, micro_batches=RANKS)
    for images, labels in list(SmallBatches(64, seed=1).epoch(0, BATCH))[:2]:
        optimizer.zero_grad()
        for index, (some, wanted) in enumerate(zip(images.chunk(RANKS), labels.chunk(RANKS), strict=True)):
            hooks.begin_micro_batch(index, RANKS)
            (F.cross_entropy(model(some), wanted) / RANKS).backward()
        hooks.optimizer_step(lambda: None)
    for rank in range(RANKS):
        for parameter, gradient in zip(model.parameters(), found[rank]["random_masks"], strict=True):
            torch.testing.assert_close(gradient, parameter.grad)


def test_sums_and_estimates_are_those_of_all_ranks(found):
    first, second = (one["context"] for one in found)
    assert first["sum"] == second["sum"] == 3.0
    assert first["estimate"] == second["estimate"] > 0


def test_a_wrapper_that_was_made_before_a_cut_state_was_loaded_is_refused(found):
    for one in found:
        before, after = one["loaded"]
        assert before.startswith("the network was reconfigured after it was wrapped")
        assert before.endswith("and after hooks.load()")
        assert after is None


def test_a_save_that_only_rank_0_calls_is_refused_soon(found):
    assert found[0]["alone"] == (
        "hooks.save was called by rank 0, and another rank ended or did not call it within 2 s: every rank has to call "
        "it, and not under `if rank == 0`"
    )


def test_what_cannot_work_on_ranks_is_one_line(found):
    for one in found:
        seeds, wrapped = one["refusals"]
        assert seeds.startswith(
            "the method, seed and sizes must be the same on all ranks: rank 0 has ('RandomChannels', {'ignore': ()}, 0,"
        )
        assert wrapped == "the model is wrapped in DistributedDataParallel; apply the method first, then wrap it"


def test_the_loop_is_warned_of_smaller_batches_than_the_method_asked_for_by_the_sum_of_the_shares(found):
    for one in found:
        odd, (message,), again = one["warnings"]
        assert odd == again == []
        assert message.startswith(
            "epoch 3 was trained with batches of 16 images, but the method asked for 17: the loop"
        )


def test_a_process_alone_is_one_rank_that_reduces_nothing():
    alone, value = Ranks.of_this_process(), torch.ones(2)
    assert (alone.rank, alone.size) == (0, 1)
    assert alone.all_reduce(value) is value
    assert alone.mean(value) is value
