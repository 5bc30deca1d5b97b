"""The causes of a method's time: which parts of a step became faster or slower than dense's."""

from __future__ import annotations

from typing import NamedTuple

from reports.content.why.shares import PRODUCTS, changes, flops, most_slowed_product, part_seconds, total
from reports.sentences import say
from suite.runs.folder.profiles import PART_TITLES, MethodProfile, Part, StageProfile

_MILLI = 1e3
_NEGLIGIBLE = 0.01  # of a dense step
_REMARKABLE = 0.1  # of a dense step, by which one product of one layer is slower


class _Change(NamedTuple):
    """How a part of a step changed: for a product, its executed FLOPs and its time relative to dense."""

    title: str
    percent: float
    executed: float | None = None
    time: float | None = None


def causes(profile: MethodProfile | None, epochs: float) -> list[str]:
    """Return which parts of a step became faster or slower than dense's in the last stage; empty without a profile.

    Args:
        profile: Profile of a method.
        epochs: Number of epochs of the trials; 0 if it is not known.
    """
    if profile is None or (dense := profile.stages[-1].dense) is None:
        return []
    stage = profile.stages[-1]
    if not (dense.adds_up and stage.method.adds_up):
        return []  # the clocks, or another program, took part of the step
    parts = [_change(stage, part, share) for part, share in changes(stage).items() if abs(share) >= _NEGLIGIBLE]
    of_several = stage.epoch if profile.stages_of_trial > 1 else None
    lines = [say("methods.changed_parts", stage=of_several, epochs=epochs, parts=parts)]
    slowed = most_slowed_product(stage)
    if parts and slowed is not None and slowed.method_s - slowed.dense_s >= _REMARKABLE * total(dense):
        product = "forward pass" if slowed.product == "forward" else PART_TITLES[slowed.product]
        ms, dense_ms = _MILLI * slowed.method_s, _MILLI * slowed.dense_s
        lines.append(say("methods.slowed", product=product, layer=slowed.layer, ms=ms, dense_ms=dense_ms))
    return lines


def _change(stage: StageProfile, part: Part, share: float) -> _Change:
    dense, method = stage.dense, stage.method
    if part not in PRODUCTS or dense is None or not (whole := flops(dense, "dense", part)):
        return _Change(PART_TITLES[part], 100 * share)
    executed = flops(method, "executed", part) / method.batch_size / (whole / dense.batch_size)
    return _Change(PART_TITLES[part], 100 * share, executed, part_seconds(method, part) / part_seconds(dense, part))
