"""Trainings of several processes: the same batches, decisions and counts as one process."""

import dataclasses

import pytest
import torch
from gloo_threads import found_by_ranks
from rank_trainers import (
    FREEZING,
    RANKS,
    SPARSE,
    UNEVEN,
    Grows,
    LeavesOut,
    normalised_net,
    on_rank,
    plain_net,
    pruning,
    residual_net,
    trained,
)
from small_training import SmallBatches, small_trainer
from stopwatches import FakeTime

from suite.engine.training.data_parallel import digests
from suite.method import Method


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two ranks found, on the CPU."""
    folder = tmp_path_factory.mktemp("data_parallel")
    return found_by_ranks(on_rank, folder, RANKS)


def assert_equal_training(several, one):
    for there, here in zip(several["weights"], one["weights"], strict=True):
        torch.testing.assert_close(there, here, rtol=0, atol=1e-5)
    for there, here in zip(several["records"], one["records"], strict=True):
        assert there["steps"] == here["steps"]
        assert there["test_accuracy"] == here["test_accuracy"]
        for name in ("train_loss", "test_loss", "regularization"):
            assert there[name] == pytest.approx(here[name], abs=1e-5)
        assert there["train_flops"] == pytest.approx(here["train_flops"])
        assert there["step_flops"] == pytest.approx(here["step_flops"])
    assert several["samples"] == one["samples"]


def test_two_processes_equal_one_through_a_reconfiguration_and_uneven_batches(found):
    """Each has two micro-batches of mixed images, and averages the weights."""
    one = trained(pruning(), dataclasses.replace(UNEVEN, micro_batches=4, mixup=0.4, ema=0.9))
    assert one["cut"] >= 1
    assert sum(record["steps"] for record in one["records"]) == 15
    for rank in range(RANKS):
        assert_equal_training(found[rank]["pruned"], one)
    assert all(map(torch.equal, found[0]["pruned"]["weights"], found[1]["pruned"]["weights"]))


@pytest.mark.parametrize("index", range(len(SPARSE)))
def test_two_processes_prune_the_gradients_and_weights_that_one_prunes(found, index):
    """In as many micro-batches together."""
    one = trained(SPARSE[index](), dataclasses.replace(UNEVEN, epochs=2, micro_batches=4))
    for rank in range(RANKS):
        assert_equal_training(found[rank]["sparse"][index], one)
    assert all(map(torch.equal, *(found[rank]["sparse"][index]["weights"] for rank in range(RANKS))))


def test_two_processes_freeze_the_layers_that_one_freezes(found):
    one = trained(FREEZING(), dataclasses.replace(UNEVEN, lookahead_steps=2))
    assert one["cut"] == 2
    for rank in range(RANKS):
        assert_equal_training(found[rank]["frozen"], one)


def test_a_rank_without_an_image_of_a_batch_takes_part_without_weight(found):
    one = trained(Grows(), dataclasses.replace(UNEVEN, epochs=2, mixup=0.4, lookahead_steps=2))
    assert [record["steps"] for record in one["records"]] == [5, 3]
    for rank in range(RANKS):
        assert_equal_training(found[rank]["grown"], one)


def test_branches_that_a_step_leaves_out_are_left_out_on_all_ranks(found):
    one = trained(LeavesOut(), dataclasses.replace(UNEVEN, epochs=2, micro_batches=4), residual_net())
    for rank in range(RANKS):
        assert_equal_training(found[rank]["left_out"], one)
        for record in found[rank]["left_out"]["records"]:
            assert record["communication"]["gradients"] == record["train_communication"]["gradients"]
    assert all(map(torch.equal, found[0]["left_out"]["weights"], found[1]["left_out"]["weights"]))


def test_running_means_are_averaged_over_the_ranks_and_contain_no_image_twice_or_invented(found):
    convolution, *_ = normalised_net()
    expected = torch.zeros(RANKS, 4)
    for images, _ in SmallBatches(71, seed=1, drop_last=False).epoch(0, 35):
        for running, share in zip(expected, images.tensor_split(RANKS), strict=True):
            if len(share):
                running.lerp_(convolution(share).mean((0, 2, 3)).detach(), 0.1)
    assert not torch.allclose(expected[0], expected[1], atol=1e-3)
    for one in found:
        torch.testing.assert_close(one["normalised"][0], expected.mean(0))


def test_running_means_of_the_averaged_weights_are_averaged_over_the_ranks_too(found):
    (_, first), (_, second) = (one["normalised"] for one in found)
    assert torch.equal(first, second)
    assert first.abs().max() > 0


def test_estimated_statistics_are_averaged_over_the_ranks_and_their_passes_are_counted_once(found):
    convolution, *_ = normalised_net()
    shares = [images.tensor_split(RANKS) for images, _ in SmallBatches(71, seed=1, drop_last=False).epoch(2, 35)]
    assert [len(share) for share in shares.pop()] == [1, 0]  # a batch that has no image for rank 1 is left out
    means = torch.stack([convolution(share).mean((0, 2, 3)).detach() for both in shares for share in both])
    recipe = dataclasses.replace(UNEVEN, epochs=2, learning_rate=0.0, precise_bn=70)
    flops = trained(Grows(), recipe, normalised_net())["records"][-1]["train_flops"]
    for mean, last in (one["estimated"] for one in found):
        torch.testing.assert_close(mean, means.mean(0))
        assert last["train_flops"] == pytest.approx(flops)


def test_a_resumed_training_gets_the_dropout_of_each_rank(found):
    for rank in range(RANKS):
        (whole, again), *_ = found[rank]["resumed"]
        assert all(map(torch.equal, whole, again))
    assert not torch.equal(found[0]["resumed"][1], found[1]["resumed"][1])


def test_measured_communication_is_the_counted_one(found):
    for rank in range(RANKS):
        _, _, last = found[rank]["resumed"]
        for record in (*last, *found[rank]["pruned"]["records"]):
            counted = record["train_communication"]
            assert {kind: record["communication"][kind] for kind in counted} == counted
    gradients = [record["step_communication"]["gradients"] for record in found[0]["pruned"]["records"]]
    assert gradients[-1] < gradients[0]
    parameters = sum(parameter.numel() for parameter in found[0]["resumed"][0][0])
    assert last[0]["step_communication"]["gradients"] < 4 * parameters
    assert "communication" not in trained(Method(), dataclasses.replace(UNEVEN, epochs=1))["records"][0]


def test_what_cannot_work_is_one_line(found):
    for rank in range(RANKS):
        mask, last, small, execution, weight = found[rank]["refused"]
        assert mask.startswith("the ranks do not train the same network: UnevenMask, masks, 2 of rank 1 is not that of")
        assert last.startswith("the last batch of an epoch has 1 of 65 images, fewer than the 2 processes; ")
        assert small == "a batch of 1 is too small for 2 processes; use a larger --batch-size"
        assert execution.startswith("recipe.execution=compile: the steps of 2 processes that train one model are eager")
        assert weight.startswith("the ranks do not train the same network: model, 0.weight of rank 1 is not that of")


def test_the_time_of_a_new_wrapper_is_that_of_the_reconfiguration(monkeypatch):
    """Only the wrapper takes time here, by a clock that nothing else advances."""
    time = FakeTime()
    monkeypatch.setattr("suite.engine.cost.clock.time", time)
    trainer = small_trainer(Grows(), dataclasses.replace(UNEVEN, epochs=1), plain_net())
    monkeypatch.setattr(trainer.parallel, "wrap", lambda: time.sleep(3.0))
    trainer.fit()
    assert {name: seconds for name, seconds in trainer.clock.seconds.items() if seconds} == {"reconfigure": 3.0}


def test_a_digest_names_the_place_of_each_tensor_and_number():
    first = digests({"masks": {"conv": torch.zeros(2)}, "count": 1})
    assert list(first) == ["masks, conv", "count"]
    other = digests({"masks": {"conv": torch.tensor([0.0, -0.0])}, "count": 1})
    assert first["masks, conv"] != other["masks, conv"]
    assert digests(torch.zeros(2)) != digests(torch.zeros(1, 2))
    assert digests(plain_net().state_dict()) == digests(plain_net().state_dict())
