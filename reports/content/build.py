"""Build the content of a report from the records of a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from reports.content.chance import chance_caution
from reports.content.model import Group, Report, Table, Verdict
from reports.content.prices import price_list
from reports.content.provenance import flatten, left_out, out_option, problem_section, provenance_section
from reports.content.remarks import (
    backend_remarks,
    communication_remarks,
    equal_starts,
    machine_remarks,
    prerequisites,
    repeated_seeds,
    time_pass_remarks,
    time_remarks,
)
from reports.content.tables import group_tables, verdict_table
from reports.content.targets import target_sections
from reports.content.verdict import Setting, budget_table, main_cost, smoke_verdict, verdict, word
from reports.content.why import why_sections
from reports.data.estimates import facts
from reports.data.method_rows import MethodRow
from reports.data.records import PageGroup, Records, epochs, page_groups
from reports.data.targets import Targets, targets_of
from reports.data.verdict import COSTS, Answers, Cost, JudgedGroup, evidence, exploratory, judged_groups, margins
from reports.figures.figure import Figure
from reports.figures.forest import gain_figure
from reports.figures.tradeoff import tradeoff_figures
from reports.figures.training_curves import curve_figures
from reports.sentences import say
from suite.files import clean
from suite.parameters import resolve
from suite.recipe import Recipe
from suite.trials.folder.records import TrialRecord

_MACHINE = {"hardware_id": "hardware", "threads": "threads", "torch": "torch", "arithmetic": "arithmetic"}
_NAMED = {"threads": "threads", "arithmetic": "arithmetic", "torch": "torch", "data_copy": "data copy"}
_IN_TITLE = ("task", "data_copy", "model", "preset", "dtype")


def build(records: Records, asked_targets: Sequence[float] = ()) -> Report:
    """Build a whole report, with its figures drawn.

    Args:
        records: Records of the folder.
        asked_targets: Target accuracies of the command, as fractions; see `reports.data.targets`.
    """
    judged = judged_groups(records)
    groups = [group for group, _, _ in judged]
    targets = targets_of(records.suite, asked_targets)
    sections = tuple(
        _group(one, _title(one[0], groups), slug, targets, records)
        for one, slug in zip(judged, _slugs(groups), strict=True)
    )
    tasks = ", ".join(dict.fromkeys(trial.text("task") for trial in records.trials))
    return Report(
        title=f"Pruning during training: {tasks}",
        summary=_summary(records, page_groups(records.trials)[1], groups, [rows for _, rows, _ in judged]),
        groups=sections,
        left_out=left_out(records),
        problems=problem_section(records),
        provenance=provenance_section(records),
    )


def _summary(
    records: Records,
    unassigned: Sequence[TrialRecord],
    groups: Sequence[PageGroup],
    rows: Sequence[Sequence[MethodRow]],
) -> str:
    total, done = len(records.trials), sum(trial.done for trial in records.trials)
    counts = f"{total} trials, {done} done" + (f", {total - done} not done" if done < total else "")
    shorter = sum(len(budget.trials) for group in groups for budget in group.budgets)
    controls = sum(len(row.trials) for several in rows for row in several if row.is_control)
    ways = sum(len(row.trials) for several in rows for row in several if row.is_without_pruning)
    kinds = ((shorter, "dense training for fewer epochs"), (ways, "other training without pruning"))
    for count, what in (*kinds, (controls, "controls of methods")):
        if count:
            counts += f"; {count} of them {'is' if count == 1 else 'are'} {what}"
    summary = f"{counts}."
    if without := sum(trial.done and "epochs.jsonl" in trial.missing_files for trial in records.trials):
        summary += f" {without} of them have no epochs.jsonl, and what it says is not shown."
    if unassigned:
        summary += f" {len(unassigned)} of them belong to no group here, and are listed only under failed trials."
    return summary


def _group(judged: JudgedGroup, title: str, slug: str, targets: Targets, records: Records) -> Group:
    group, rows, answers = judged
    is_smoke, first = answers is None, main_cost(rows)
    caution = "" if is_smoke else chance_caution(rows)
    images = max((facts(trial)[1] for row in rows for trial in row.done), default=0)
    declared = margins(records.suite)
    setting = Setting(
        epochs(group), declared, images, not caution, exploratory(records.suite), out_option(records.folder)
    )
    device = next((trial.text("device") for row in rows for trial in row.done if trial.text("device")), "")
    profiled = next((one.methods for one in records.profiles if one.key == dict(group.key)), {})
    budgets = {cost: evidence(group, (), cost).budgets for cost in COSTS}
    tradeoffs, missing_tradeoffs = tradeoff_figures(rows, slug, budgets)
    curves, missing_curves = curve_figures(rows, slug)
    verdicts = _verdict_tables(rows, answers, setting.margin, slug, title)
    further = [table for cost, table in verdicts.items() if cost != first and table is not None and not is_smoke]
    return Group(
        title=title,
        slug=slug,
        subtitle=_subtitle(group, device),
        data_note=_data_note(group),
        verdict=_verdict(rows, answers, setting),
        caution=caution,
        remarks=_remarks(group, rows),
        tables=(*further, *group_tables(rows, slug, device), *budget_table(group, slug, first))
        if any(row.done for row in rows)
        else (),
        tradeoff_figures=(*_gains(rows, answers, setting.margin, slug), *tradeoffs),
        curve_figures=tuple(curves),
        missing_figures=(*missing_tradeoffs, *missing_curves),
        summary=verdicts[first],
        prices=None
        if answers is None or caution
        else price_list(group, rows, answers[first], first, targets, f"{slug}-prices"),
        sections=(
            *target_sections(group, rows, targets, declared[-1], slug, default=not is_smoke, learned=not caution),
            *(why_sections(rows, profiled, slug) if profiled else ()),
        ),
    )


def _verdict_tables(
    rows: Sequence[MethodRow], answers: Answers | None, margin: float, slug: str, title: str
) -> dict[Cost, Table | None]:
    """Return the table of the first screen, at the cost that decides, and that of FLOPs if it is another one."""
    first = main_cost(rows)
    titles = {first: title} | ({} if first == "flops" else {"flops": "The same at equal executed FLOPs"})
    return {
        cost: verdict_table(rows, None if answers is None else answers[cost], cost, margin, f"{slug}-{cost}", text)
        for cost, text in titles.items()
    }


def _gains(rows: Sequence[MethodRow], answers: Answers | None, margin: float, slug: str) -> list[Figure]:
    """Return the figure of gains at the cost that decides; none if no gain is known."""
    if answers is None:
        return []
    cost = main_cost(rows)
    words = {one.candidate.label: word(one, margin) for one in answers[cost].both}
    figure = gain_figure(rows, answers[cost], words, cost, margin, slug)
    return [figure] if figure else []


def _remarks(group: PageGroup, rows: Sequence[MethodRow]) -> tuple[str, ...]:
    everything = [*group.trials, *(trial for one in group.budgets for trial in one.trials)]
    return (
        *time_remarks(everything),
        *time_pass_remarks(rows),
        *machine_remarks(group),
        *repeated_seeds(group),
        *equal_starts(rows),
        *prerequisites(rows),
        *backend_remarks(rows),
        *communication_remarks(rows),
    )


def _verdict(rows: Sequence[MethodRow], answers: Answers | None, setting: Setting) -> Verdict | None:
    if not any(row.done for row in rows):
        return Verdict((say("verdict.nothing_done"),))
    return smoke_verdict(setting) if answers is None else verdict(rows, answers, setting)


def _title(group: PageGroup, groups: Sequence[PageGroup]) -> str:
    """Return the heading of a group. No two groups have equal headings."""
    key = group.key
    task = f"{key['task']} ({_copy_kind(key['data_copy'])})"
    parts = [task, *(key[name] for name in ("model", "preset", "dtype") if key[name])]
    execution = group.trials[0].text("execution")  # a field of the recipe, so that the whole group has it
    if execution not in ("", "eager"):
        parts.append(execution)
    # Name what else distinguishes this group from others with the same title.
    twins = [other for other in groups if other is not group and all(other.key[k] == key[k] for k in _IN_TITLE)]
    for name, words in _MACHINE.items():
        if any(other.key[name] != key[name] for other in twins):
            parts.append(f"{words} {key[name] or 'not recorded'}")
    if any(other.key[name] != key[name] for other in twins for name in ("recipe", "epochs", "batch_size")):
        parts.append(_recipe_differences(group, twins))
    return " · ".join(parts)


def _copy_kind(data_copy: str) -> str:
    kind = re.sub(r"-[0-9a-f]{8}$", "", data_copy)
    return f"{kind} copy" if kind else "data copy not recorded"


def _subtitle(group: PageGroup, device: str) -> str:
    done = [trial for trial in group.trials if trial.done]
    length, size = group.key["epochs"], group.key["batch_size"]
    parts = [f"{length} {'epoch' if length == '1' else 'epochs'}"] if length else []
    parts += [f"batch size {size}"] if size else []
    parts += _image_sizes(group)
    parts.append(f"device {device or 'not recorded'} (hardware id {group.key['hardware_id'] or 'not recorded'})")
    parts += [f"{words} {group.key[name]}" for name, words in _NAMED.items() if group.key[name]]
    sources = {clean(str(trial.spec.recipe_source)) for trial in done if trial.spec.recipe_source}
    if sources:
        parts.append(f"recipe of {' or '.join(sorted(sources))}")
    text = ", ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _image_sizes(group: PageGroup) -> list[str]:
    """Return the image sizes that task or recipe of a group name; empty if every trial has the same."""
    recipe = json.loads(group.key["recipe"] or "{}")
    side = group.trials[0].spec.task_parameters.get("image_size")
    named = {"images": [side] if isinstance(side, int) else [], "training images": recipe.get("train_sizes", ())}
    texts = {what: " then ".join(f"{side}x{side}" for side in sides) for what, sides in named.items()}
    return [f"{what} of {text} pixels" for what, text in texts.items() if text]


def _data_note(group: PageGroup) -> str:
    notes = [trial.spec.data_copy.get("note") for trial in group.trials]
    return clean(next(filter(None, notes), "")).rstrip(".")


def _recipe_differences(group: PageGroup, twins: Sequence[PageGroup]) -> str:
    """Return the fields of the recipe in which a group differs from its twins: `recipe epochs=5, batch_size=128`."""
    own, *others = (flatten({**resolve(Recipe), **json.loads(one.key["recipe"] or "{}")}) for one in (group, *twins))
    differing = [key for key in own if any(other.get(key) != own[key] for other in others)]
    return "recipe " + ", ".join(f"{key}={own[key]}" for key in differing[:4])


def _slugs(groups: Sequence[PageGroup]) -> list[str]:
    """Return a distinct name for each group for anchors and files, of letters, digits, `.`, `_` and `-`."""
    slugs: list[str] = []
    for group in groups:
        names = [*(group.key[name] for name in ("task", "model", "preset", "dtype")), group.key["hardware_id"][:8]]
        parts = (re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") for name in names)
        text = "-".join(filter(None, parts))
        # Style sheets would need escapes for an id that starts with a digit.
        slug = base = f"g-{text or 'group'}"
        number = 2
        while slug in slugs:
            slug, number = f"{base}-{number}", number + 1
        slugs.append(slug)
    return slugs
