"""The arithmetic of the time pass, with known times."""

import pytest
from pydantic import ValidationError
from time_passes import one_pass, pairs, stage

from suite.measure.times import PassTime
from suite.recipe import Phase


def pass_of(*stages, dense=((None, 40),), **changed):
    sizes = [{"image_size": size, "steps": steps} for size, steps in dense]
    return PassTime.model_validate(one_pass(1.0, stages=[*stages], dense=sizes, **changed))


def test_stages_count_with_their_steps():
    assert pass_of(stage(1.0, 1, 10), stage(0.5, 2, 30)).ratio == pytest.approx(0.625)


def test_both_states_of_a_stage_count_alike():
    one = stage(1.0, 1, 40) | {"end": pairs(0.5, count=9)}
    assert pass_of(one).ratio == pytest.approx(0.75)
    assert pass_of(one | {"end": None}).ratio == pytest.approx(1.0)
    assert (pass_of(one).pairs, pass_of(one | {"end": None}).pairs) == (12, 3)


def test_reconfigurations_are_relative_to_the_time_of_all_dense_steps():
    found = pass_of(stage(1.0, 1, 40, dense=2.0), reconfigure_s=8.0)
    assert (found.ratio, found.reconfiguration) == pytest.approx((1.1, 0.1))


def test_fewer_steps_than_dense_take_less_time():
    """A method with a larger batch takes fewer, longer steps."""
    assert pass_of(stage(1.8, 1, 20)).ratio == pytest.approx(0.9)


def test_one_slow_step_changes_nothing():
    slow = [[seconds, 1.0] for seconds in (0.8, 0.8, 30.0, 0.8, 0.8)]
    assert pass_of(stage(1.0, 1, 40) | {"start": slow, "end": None}).ratio == pytest.approx(0.8)


def test_a_machine_that_drifts_changes_nothing():
    drift = [[0.8 * pace, pace] for pace in (1.0, 2.0, 3.0, 4.0)]
    assert pass_of(stage(1.0, 1, 40) | {"start": drift, "end": drift}).ratio == pytest.approx(0.8)


def test_steps_count_with_the_time_of_a_dense_step_of_their_size():
    """30 dense steps take 1 s each, and 10 take 4 s; the method halves only the latter."""
    stages = (stage(1.0, 1, 30, 1.0, 96), stage(0.5, 2, 10, 4.0, 160))
    found = pass_of(*stages, dense=((96, 30), (160, 10)), reconfigure_s=7.0)
    assert found.ratio == pytest.approx(57 / 70)
    assert found.reconfiguration == pytest.approx(0.1)
    relative = [found.relative_step(Phase(size)) for size in (96, 160, 320)]
    assert relative == pytest.approx([40 / 70, 160 / 70, 1.0])


def test_what_dense_spends_whatever_its_length_is_in_its_time_and_in_no_step():
    stages = (stage(1.0, 1, 30, 1.0, 96), stage(0.5, 2, 10, 4.0, 160))
    found = pass_of(*stages, dense=((96, 30), (160, 10)), reconfigure_s=7.0, dense_reconfigure_s=14.0)
    assert found.ratio == pytest.approx(57 / 84)
    assert found.fixed == pytest.approx(14 / 70)
    assert [found.relative_step(Phase(size)) for size in (96, 160)] == pytest.approx([40 / 70, 160 / 70])


def test_stages_of_one_size_share_their_dense_steps():
    stages = (stage(1.0, 1, 20, 1.0, 96), stage(1.0, 2, 20, 3.0, 96), stage(0.5, 3, 20, 4.0, 160))
    found = pass_of(*stages, dense=((96, 40), (160, 20)))  # the machine was slower in the second one
    assert found.ratio == pytest.approx((40 * 2 + 20 * 4 * 0.5) / (40 * 2 + 20 * 4))


def test_a_size_that_was_not_measured_is_named():
    with pytest.raises(ValidationError, match="no stage of its trial has training images of 160 pixels"):
        pass_of(stage(1.0, 1, 20, 1.0, 96), dense=((96, 20), (160, 20)))
    with pytest.raises(
        ValidationError, match="a stage has training images of 128 pixels and no frozen parameters, and dense has none"
    ):
        pass_of(*(stage(1.0, 1, 20, 1.0, size) for size in (96, 128)), dense=((96, 20),))


def test_pairs_are_a_text_of_microseconds_in_the_file():
    one = pass_of(stage(1.0) | {"start": [[0.0123456, 1.5], [1.0, 2.0], [3.0, 4.0]]})
    stored = one.model_dump(mode="json")
    assert stored["stages"][0]["start"] == "12346 1500000 1000000 2000000 3000000 4000000"
    assert PassTime.model_validate(stored) == one


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "1 2 3 4",
        "1 2 3 4 5",
        "1 2 3 4 5 0",
        "1 2 3 4 5 -6",
        "1 2 3 4 5 6.5",
        "1 2 3 4 5 " + "9" * 20,
        7,
        [[1]],
    ],
)
def test_other_texts_are_refused(wrong):
    with pytest.raises(ValidationError):
        pass_of(stage(1.0) | {"start": wrong})
