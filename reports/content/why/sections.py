"""The sections "Why" of a report: where the time of a step goes, and layers and products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports import formatting
from reports.content.model import Section, Table
from reports.content.why.layers import layer_table
from reports.content.why.parts import parts_table, savings_table
from reports.content.why.shares import PRODUCTS, part_seconds, share_of_products, total
from reports.data.groups import BASELINE
from reports.data.method_rows import MethodRow
from reports.figures.figure import Figure
from reports.figures.step_parts import step_figure
from suite.runs.folder.profiles import PART_TITLES, MethodProfile, Part, StageProfile, StepProfile

_LAST_STAGE = "The last stage ends with the last step: channels that a method removes after it are still there."
_BARS = (
    "Means over the faster half of the steps with clocks, in the last stage of each method, for the images of a dense "
    "step. Rest: normalisation, other operations, optimizer, input and the loop."
)
PRUNING: Part = "pruning"
_PUBLISHED = (
    "SDGP's paper measured 33.17 % of the time of the three products for ResNet-18 on ImageNet (batch size 256, Nvidia "
    "A100; Sec. IV-C and Fig. 9)."
)


def why_sections(rows: Sequence[MethodRow], profiles: Mapping[str, MethodProfile], slug: str) -> tuple[Section, ...]:
    """Return the sections about the profiles of a group: parts of a step, and layers. None without profiles.

    Args:
        rows: Methods of a group, in the order of the report.
        profiles: The entries of `profile.json` for this group, by method.
        slug: Prefix of the tables' names.
    """
    found = [(row, profiles[row.label]) for row in rows if row.label in profiles]
    if not found:
        return ()
    parts: list[Table] = []
    layers: list[Table] = []
    for number, (row, profile) in enumerate(found, 1):
        for stage in profile.stages:
            parts.append(parts_table(row, profile, stage, f"{slug}-why-{number}-{stage.epoch}"))
        if (table := savings_table(row, profile, f"{slug}-saving-{number}")) is not None:
            parts.append(table)
        layers.append(layer_table(row, profile, f"{slug}-layers-{number}"))
    return (
        Section("Why: where the time of a step goes", "why", _lines(found), tuple(parts), (_step_figure(found, slug),)),
        Section("Why: layers and products", "why-layers", (_machine(found[0][1]), _LAST_STAGE), tuple(layers)),
    )


def _step_figure(found: Sequence[tuple[MethodRow, MethodProfile]], slug: str) -> Figure:
    """Return the figure of the last stage of each method, and of the dense steps that ran next to the first one."""
    stage = found[0][1].stages[-1]
    dense = stage.dense or stage.method
    steps = {BASELINE: dense} | {row.label: profile.stages[-1].method for row, profile in found}
    return step_figure(
        {label: _milliseconds(step, dense.batch_size) for label, step in steps.items()}, f"{slug}-step-parts", _BARS
    )


def _milliseconds(step: StepProfile, batch_size: int) -> dict[str, float]:
    """Return the parts of a step as the figure shows them, for as many images as a dense step has."""
    scale = 1e3 * batch_size / step.batch_size
    shown = {PART_TITLES[part]: scale * part_seconds(step, part) for part in (*PRODUCTS, PRUNING)}
    return shown | {"rest": scale * total(step) - sum(shown.values())}


def _lines(found: Sequence[tuple[MethodRow, MethodProfile]]) -> tuple[str, ...]:
    """Return how the profile was measured, and the share of the data gradient."""
    first = found[0][1]
    steps = [step for _, one in found for stage in one.stages for step in (stage.method, stage.dense) if step]
    clocks = [step.clocks.ratio for step in steps]
    sums = [step.sum_over_step for step in steps]
    dense = first.stages[0].dense or first.stages[0].method
    lines = [
        "Measured after the trials by the profile pass, in steps with clocks that alternate with steps without. With "
        f"clocks, steps took {_range(clocks)} times as long; the parts add up to {_range(sums)} times a step without "
        "clocks. These are medians over neighbouring steps, while the milliseconds of the tables are means over the "
        "faster half of the steps. The clocks compute both gradients of a layer separately, also where dense training "
        "computes them in one call.",
        f"In a dense step, the data gradient takes {_percent(share_of_products(dense, 'dgrad'))} % of the time of the "
        f"three products and {_percent(part_seconds(dense, 'dgrad') / total(dense))} % of the step. {_PUBLISHED}",
    ]
    if apart := [row.label for row, one in found if not all(_adds_up(stage) for stage in one.stages)]:
        lines.append(
            f"The parts are more than 10 % away from a step without clocks for {', '.join(apart)}: other programs "
            "disturbed the measurement. Repeat it on an idle machine."
        )
    busy = max(one.load for _, one in found)
    if busy >= 0.5 * first.threads:
        lines.append(f"Other programs used {busy:.1f} cores when a measurement began; compare shares, not times.")
    if first.execution != "eager":
        lines.append(f"The trials ran with execution={first.execution}; the profiled steps ran eagerly.")
    return tuple(lines)


def _adds_up(stage: StageProfile) -> bool:
    return all(step.adds_up for step in (stage.method, stage.dense) if step)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3f}", f"{max(values):.3f}"
    return low if low == high else f"{low} to {high}"


def _machine(profile: MethodProfile) -> str:
    copies = profile.machine.copies
    threads = f"{profile.threads} thread" + ("" if profile.threads == 1 else "s")
    rates = " and ".join(
        f"{formatting.si(one.bytes_per_s, 'B/s')} ({formatting.binary_bytes(one.bytes)})"
        for one in dict.fromkeys((copies[0], copies[-1]))
    )
    peak = formatting.si(2 * profile.machine.macs_per_s, "FLOP/s")
    return f"Measured with the profile on {threads} in {profile.dtype}: a large matrix product {peak}; a copy {rates}."


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
