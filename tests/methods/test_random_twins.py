"""Random twins: the same amount is pruned at the same time, and what is pruned depends on the seed alone."""

import pytest
import torch
from small_clicktrain import Run, stages
from small_prunetrain import decide, kill, start, train

from methods.clicktrain import ClickTrain
from methods.prunetrain import PruneTrain
from methods.prunetrain.oneshot import OneShot
from methods.prunetrain.ssl import SSL
from suite.method import OtherTrial, ReconfigPlan
from suite.trials.planning import plan
from suite.trials.spec import SuiteSpec

PRUNED = {"ratio": 0.9, "threshold": 7e-2}


def trained(others=None, **parameters):
    """Train four epochs by PruneTrain; return the sizes of the spaces after each, the plans, and their epochs."""
    _, _, hooks, optimizer = start(others=others, **PRUNED, **parameters)
    sizes, epochs = [], []
    for epoch in range(4):
        train(hooks, optimizer, 4, seed=10 * epoch)
        before = len(hooks.reconfigurations)
        hooks.end_epoch()
        epochs += [epoch + 1] * (len(hooks.reconfigurations) - before)
        sizes.append({name: space.size for name, space in hooks.ctx.spaces.items()})
    return sizes, hooks.reconfigurations, tuple(epochs)


@pytest.mark.parametrize("parameters", [{}, {"gating": True, "round_to": 4}])
def test_prunetrain_s_twin_removes_as_many_channels_of_each_space_after_the_same_epochs(parameters):
    sizes, plans, epochs = trained(**parameters)
    assert len(plans) > 1
    name = PruneTrain(**PRUNED, **{"interval": 1} | parameters, selection="random").depends_on()[0]
    others = {name: OtherTrial(tuple(plans), 1.0, epochs=epochs)}
    twin_sizes, twin_plans, twin_epochs = trained(others, **parameters, selection="random")
    assert twin_sizes == sizes
    assert twin_epochs == epochs
    assert [plan.kept.keys() for plan in twin_plans] == [plan.kept.keys() for plan in plans]
    assert [plan.removed_branches for plan in twin_plans] == [plan.removed_branches for plan in plans]
    assert twin_plans != plans


def test_every_channel_may_go_whatever_its_weights_and_the_seed_decides():
    """Half of the channels are dead, and remain as often as the others."""
    name = PruneTrain(interval=1, threshold=1e-2, selection="random").depends_on()[0]
    half = OtherTrial((ReconfigPlan(kept={"reduce.conv": list(range(8))}),), 1.0, epochs=(1,))
    drawn = []
    for seed in (*range(5), 4):
        model, _, hooks, _ = start(others={name: half}, seed=seed, selection="random")
        for index in range(8):
            kill(model, hooks.ctx.spaces, "reduce.conv", index, 1e-3)
        (kept,) = decide(hooks).kept.values()
        assert len(kept) == 8
        drawn.append(kept)
        for index in set(range(16)) - set(kept):
            assert not model.reduce.conv.weight[index].any()
    assert drawn[4] == drawn[5]
    assert len(set(map(tuple, drawn))) == 5
    dead = sum(index < 8 for kept in drawn[:5] for index in kept)
    assert 6 < dead < 34  # of 40; six standard deviations of a hypergeometric sum are 14


def test_a_trial_that_does_not_say_when_it_was_cut_is_refused():
    name = PruneTrain(interval=1, threshold=1e-2, selection="random").depends_on()[0]
    _, _, hooks, _ = start(others={name: OtherTrial((ReconfigPlan(),), 1.0)}, selection="random")
    with pytest.raises(ValueError, match="selection=random needs the epochs"):
        decide(hooks)


def planned(methods, **changes):
    fields = {"tasks": "digits", "preset": "smoke", "seeds": (0,), "device": "cpu", "dtype": "float32", "data_root": ""}
    return plan(SuiteSpec(methods=methods, **(fields | changes)))


@pytest.mark.parametrize("method", ["prunetrain[ratio=0.3]", "oneshot", "ssl", "clicktrain[mask_momentum=true]"])
def test_controls_add_the_twin_of_a_trial(method):
    alone, controlled = planned(method), planned(method, controls=True)
    (own,) = alone
    (twin,) = (trial for trial in controlled if trial.method == own.method and trial != own)
    assert own in controlled  # with the label that was typed, although the twin names all values
    assert twin.parameters == {**own.parameters, "selection": "random"}
    if own.method == "clicktrain":
        assert not twin.depends_on
    else:
        assert list(twin.depends_on.values()) == [own.trial_id]
        assert controlled.index(own) < controlled.index(twin)


def test_the_trial_that_a_twin_needs_is_planned_with_it():
    texts = ("prunetrain", "ssl[from_trained=dense[match=sdgp]]", "oneshot[at=0.25]")
    for text in texts:
        name, _, typed = text.partition("[")
        inside = f"{typed.removesuffix(']')}," if typed else ""
        trials = {trial.label: trial for trial in planned(f"{name}[{inside}selection=random]")}
        (original,) = planned(text)[-1:]
        assert original.hash in {trial.hash for trial in trials.values()}


def test_the_default_is_published():
    assert {kind().selection for kind in (PruneTrain, OneShot, SSL)} == {"lasso"}
    assert ClickTrain().selection == "saliency"
    assert PruneTrain().depends_on() == ()
    assert SSL(from_trained="dense").depends_on() == ("dense",)


def masks(seed=0, rank=0, **given):
    run = Run(stages(**given), seed=seed)
    run.runner.ctx.seed, run.runner.ctx.rank = seed, rank
    run.epochs(1)
    for step in range(2):
        run.step(10 + step)  # patterns are chosen by the first batches of the second epoch
    return run


@pytest.mark.parametrize(
    "given", [{}, {"pool": 12, "balance": "filter"}, {"scope": "filter"}, {"pool": "dynamic", "batches": 2}]
)
def test_clicktrain_s_twin_prunes_as_many_kernels_and_weights_of_each_layer(given):
    own, twin = masks(**given), masks(**given, selection="random")
    assert own.method._masks.keys() == twin.method._masks.keys()
    for name, mask in own.method._masks.items():
        other = twin.method._masks[name]
        assert mask.kernels.sum() == other.kernels.sum()
        assert mask.density == other.density
        assert (mask.outside.sum((2, 3)) == other.outside.sum((2, 3))).all()
        assert not torch.equal(mask.kernels, other.kernels)
        if "balance" in given:
            assert torch.equal(mask.kernels.sum(1), other.kernels.sum(1))


def test_clicktrain_s_twin_follows_the_seed_alone():
    first, again, seed, rank = (
        masks(**given, selection="random") for given in ({}, {}, {"seed": 1}, {"coefficient": 0.0, "rank": 1})
    )
    for name, mask in first.method._masks.items():
        assert torch.equal(mask.kernels, again.method._masks[name].kernels)
        assert torch.equal(mask.outside, again.method._masks[name].outside)
        assert not torch.equal(mask.kernels, seed.method._masks[name].kernels)
        assert torch.equal(mask.kernels, rank.method._masks[name].kernels)  # all processes prune the same


def test_clicktrain_s_twin_takes_all_blocks_equally_often():
    counts = masks(selection="random").method._masks.count_patterns()
    expected = sum(counts.values()) / 4
    assert len(counts) == 4
    assert all(abs(count - expected) < 6 * (expected * 0.75) ** 0.5 for count in counts.values())
