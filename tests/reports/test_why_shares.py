"""Shares and savings from known profiles."""

import pytest
from profiles import stage, step

from reports.content.why import flops, savings, share_of_products, total
from suite.measure.profiles import StageProfile


def stage_of(**changes):
    """Return a stage in which 2:4 halves the data gradient's work, and nothing is skipped."""
    method = step(effective=0.5, pruning_s=0.6, **changes)
    return StageProfile.model_validate(stage(method, step(), ratio=1.02))


def test_shares_of_the_three_products():
    found = stage_of().dense
    assert [share_of_products(found, name) for name in ("forward", "dgrad", "wgrad")] == pytest.approx(
        [2 / 9, 3 / 9, 4 / 9]
    )
    assert (total(found), flops(found, "dense"), flops(found, "dense", ["dgrad"])) == (14.0, 3000.0, 1000.0)


def test_the_modelled_saving_is_the_share_of_the_data_gradient_times_what_is_pruned():
    found = savings(stage_of())
    assert (found.skipped.products, found.skipped.step) == pytest.approx((3 / 9 * 0.5, 3 / 14 * 0.5))
    assert (found.with_pruning.products, found.with_pruning.step) == pytest.approx((0.9 / 9, 0.9 / 14))
    assert (found.measured.products, found.measured.step) == pytest.approx((0.0, -0.02))


def test_a_kernel_that_skips_saves_measured_time():
    assert savings(stage_of(dgrad_s=1.5)).measured.products == pytest.approx(1.5 / 9)


def test_work_is_compared_per_image():
    """A method that doubles the batch size does not do more work per image."""
    small = step(effective=0.5)
    large = small | {"batch_size": 32}
    for product in large["layers"][0]["products"].values():
        product.update({name: 2 * product[name] for name in ("dense", "current", "effective", "executed")})
    assert savings(StageProfile.model_validate(stage(large, step(), 1.0))).skipped.step == pytest.approx(1.5 / 14)


def test_a_removed_layer_is_skipped_completely():
    without = step(dgrad_s=0.0, wgrad_s=0.0)
    without["parts"]["forward"], without["layers"] = 0.0, []
    assert savings(StageProfile.model_validate(stage(without, step(), 0.5))).skipped.products == pytest.approx(1.0)


def test_dense_training_saves_nothing():
    assert savings(StageProfile.model_validate(stage(step()))) is None


def test_parts_add_up_to_a_step_without_clocks():
    assert StageProfile.model_validate(stage(step(clocks=1.08))).method.sum_over_step == pytest.approx(1.08)
    assert StageProfile.model_validate(stage(step(clocks=1.08))).method.adds_up
    assert not StageProfile.model_validate(stage(step(clocks=1.12))).method.adds_up
    assert not StageProfile.model_validate(stage(step(clocks=0.88))).method.adds_up
