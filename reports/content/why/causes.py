"""The causes in a method's verdict: which parts of a step became faster or slower than dense's."""

from __future__ import annotations

from reports import formatting
from reports.content.why.shares import PRODUCTS, changes, flops, most_slowed_product, part_seconds, total
from suite.runs.folder.profiles import PART_TITLES, MethodProfile, Part, StageProfile

_MILLI = 1e3
_NEGLIGIBLE = 0.01  # of a dense step
_REMARKABLE = 0.1  # of a dense step, by which one product of one layer is slower


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
    changed = [f"{_part_change(stage, part)} {_signed(share)}" for part, share in changes(stage).items()
               if abs(share) >= _NEGLIGIBLE]  # fmt: skip
    last = f" of the last stage (from epoch {stage.epoch}{f' of {epochs:g}' if epochs else ''})"
    where = f"in a profiled step{last if profile.stages_of_trial > 1 else ''}"
    if not changed:
        return [f"{where}, no part takes 1 % of the dense step more or less than in dense training"]
    lines = [f"{where}, parts change by these shares of the dense step: {', '.join(changed)}"]
    slowed = most_slowed_product(stage)
    if slowed is not None and slowed.method_s - slowed.dense_s >= _REMARKABLE * total(dense):
        product = "forward pass" if slowed.product == "forward" else PART_TITLES[slowed.product]
        lines.append(
            f"the {product} of {slowed.layer} alone takes {_MILLI * slowed.method_s:.1f} ms in place of "
            f"{_MILLI * slowed.dense_s:.1f} ms"
        )
    return lines


def _part_change(stage: StageProfile, part: Part) -> str:
    """Return the title of a part; for a product, with its executed FLOPs and its time relative to dense."""
    dense, method = stage.dense, stage.method
    if part not in PRODUCTS or dense is None or not (whole := flops(dense, "dense", part)):
        return PART_TITLES[part]
    executed = flops(method, "executed", part) / method.batch_size / (whole / dense.batch_size)
    time = part_seconds(method, part) / part_seconds(dense, part)
    return f"{PART_TITLES[part]} ({executed:.2f} × the FLOPs in {time:.2f} × the time)"


def _signed(share: float) -> str:
    return f"{formatting.signed(100 * share, 1)} %"
