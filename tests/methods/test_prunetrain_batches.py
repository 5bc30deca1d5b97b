"""PruneTrain's growing batch: its bound in memory, its learning rate, and what it refuses."""

import pytest
import torch
from small_prunetrain import BATCH, SHAPE, batch, decide, kill, start, train

from methods.prunetrain import PruneTrain
from suite.errors import UsageError


def test_prunetrain_10_the_batch_grows_within_the_memory_of_the_start():
    model, method, hooks, optimizer = start(train_images=1000, dynamic_batch="start")
    estimates = []
    measure = hooks.ctx.memory_estimate
    hooks.ctx.memory_estimate = lambda plan: estimates.append(measure(plan)) or estimates[-1]
    train(hooks, optimizer, 1)
    for name, space in hooks.ctx.spaces.items():
        for index in range(space.size - 1):
            if not space.frozen:
                kill(model, hooks.ctx.spaces, name, index)
    plan = decide(hooks)
    bound, now, more = estimates
    assert plan.batch_size > BATCH
    assert (plan.batch_size - BATCH) % 32 == 0
    assert plan.lr_scale == plan.batch_size / BATCH
    each = (more - now) / 32
    assert now + each * (plan.batch_size - BATCH) <= bound < now + each * (plan.batch_size + 32 - BATCH)
    hooks.apply_plan(plan)
    assert hooks.ctx.batch_size == plan.batch_size
    # The bound stays that of the start, also in a trial that was resumed.
    assert method.state_dict()["memory_bound"] == bound
    resumed = PruneTrain(dynamic_batch="start")
    resumed.load_state_dict(method.state_dict())
    assert resumed.state_dict() == method.state_dict()


def test_a_learning_rate_grows_with_the_batch_from_its_first_size():
    model, _, hooks, optimizer = start(train_images=10_000, dynamic_batch="start")
    train(hooks, optimizer, 1)
    # Of a bound of 1000: what a cut of any size leaves room for is a batch of 48, then one of 80.
    for images, channel in ((48, 0), (80, 1)):
        kill(model, hooks.ctx.spaces, "prep.conv", channel)
        hooks.ctx.memory_estimate = lambda plan, most=images: 1000 + (plan.batch_size or most) - most
        plan = decide(hooks)
        assert (plan.batch_size, plan.lr_scale) == (images, images / BATCH)
        hooks.apply_plan(plan)


def test_a_growing_batch_needs_the_images_of_an_epoch():
    with pytest.raises(UsageError, match="dynamic_batch=start needs train_images, the number of images per epoch"):
        start(dynamic_batch="start")


def test_a_loop_that_keeps_its_batch_where_a_larger_one_was_asked_for_is_told(caplog):
    model, _, hooks, optimizer = start(train_images=1000, dynamic_batch="start")
    hooks.transform_batch(*batch(0))
    train(hooks, optimizer, 1)
    for name, space in hooks.ctx.spaces.items():
        for index in range(space.size - 1):
            if not space.frozen:
                kill(model, hooks.ctx.spaces, name, index)
    assert hooks.end_epoch() is not None
    asked = hooks.ctx.batch_size
    assert asked > BATCH
    assert not caplog.records
    hooks.transform_batch(torch.zeros(asked, *SHAPE), torch.zeros(asked, dtype=torch.int64))
    hooks.end_epoch()
    assert not caplog.records
    hooks.transform_batch(*batch(1))
    hooks.end_epoch()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"epoch 3 was trained with batches of {BATCH} images, but the method asked")


def test_a_batch_is_never_larger_than_the_data_nor_smaller_than_it_was():
    model, _, hooks, optimizer = start(train_images=BATCH + 40, dynamic_batch="start")
    train(hooks, optimizer, 1)
    for index in range(5):
        kill(model, hooks.ctx.spaces, "prep.conv", index)
    hooks.ctx.memory_estimate = lambda plan: 1000 if plan.batch_size is None else plan.batch_size
    plan = decide(hooks)
    assert plan.batch_size == BATCH + 32
    hooks.ctx.memory_estimate = lambda plan: 2000 + (plan.batch_size or 0)
    assert hooks.method._with_larger_batch(plan, hooks.ctx).batch_size == BATCH


def test_a_batch_grows_by_what_the_micro_batches_divide():
    model, _, hooks, optimizer = start(train_images=10_000, dynamic_batch="start")
    hooks.ctx.micro_batches = 3
    train(hooks, optimizer, 1)
    kill(model, hooks.ctx.spaces, "prep.conv", 0)
    hooks.ctx.memory_estimate = lambda plan: 10_000 if plan.batch_size is None else 100 + plan.batch_size
    assert decide(hooks).batch_size == BATCH + 96 * ((10_000 - 100 - BATCH) // 96)


def test_the_devices_memory_bounds_on_a_device_alone():
    with pytest.raises(ValueError, match="dynamic_batch=device needs a CUDA device"):
        start(dynamic_batch="device")


# The rest
