"""From a folder's records to the report model."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence

from reports.content.backends import multipliers
from reports.content.headlines import headlines
from reports.content.missing_files import kept_line, lacks
from reports.content.model import Group, Report
from reports.content.provenance import flatten, problems, trust
from reports.content.tables import flops_table, summary_table
from reports.data.disturbed_times import competing_programs, resumed, slow_products, unsteady_times
from reports.data.groups import BASELINE, TrialGroup, group_trials, label
from reports.data.method_rows import method_rows, repeated_seeds
from reports.data.records import Records
from reports.data.trial_files import clean
from reports.figures.tradeoff import tradeoff_figures
from reports.figures.training_curves import curve_figures


def build(records: Records, figures: Collection[str] = ()) -> Report:
    """Make the whole report, figures drawn, out of what a folder holds.

    Args:
        records: of the folder.
        figures: names of the files that an earlier report has drawn. Those that cannot be drawn again, because trials
            have no epochs.jsonl any more, are named in what the report lacks.
    """
    groups, apart = group_trials(records.trials)
    colours = _colours([label(trial) for trial in records.trials])
    slugs = _slugs(groups)
    drawn = tuple(_group(group, groups, slug, colours) for group, slug in zip(groups, slugs, strict=True))
    done = sum(trial.done for trial in records.trials)
    tasks = ", ".join(dict.fromkeys(trial.text("task") or "unnamed task" for trial in records.trials))
    summary = f"{len(records.trials)} trials, {done} done. Numbers from {records.source}."
    if done < len(records.trials):
        count = f"{len(records.trials)} trials, {done} done, {len(records.trials) - done} not"
        summary = f"{count}. Numbers from {records.source}."
    for several, why in (
        ([trial for trial in apart if trial.text("method")], "fit several groups"),
        ([trial for trial in apart if not trial.text("method")], "have a damaged record"),
    ):
        if several:
            summary += f" {len(several)} trials {why} and stand in the list of what went wrong alone."
    title = f"Pruning during training: {tasks}"
    kept: tuple[str, ...] = ()
    if any(trial.done and "epochs.jsonl" in trial.missing_files for trial in records.trials):
        own = {f"{figure.name}.svg" for group in drawn for figure in (*group.tradeoff_figures, *group.curve_figures)}
        kept = tuple(sorted(set(figures) - own))
    lacking = (*lacks(records), *kept_line([_without_slug(name, slugs) for name in kept]))
    return Report(title, summary, lacking, drawn, problems(records), trust(records), kept)


def _without_slug(name: str, slugs: Sequence[str]) -> str:
    """The file's name without its group's, where there is one group: `loss-epochs.svg`."""
    return name.removeprefix(f"{slugs[0]}-") if len(slugs) == 1 else name


def _colours(labels: Sequence[str]) -> dict[str, int]:
    """Colour 0 is dense's and nobody else's; the others in the order of the table."""
    others = [name for name in dict.fromkeys(labels) if name != BASELINE]
    return {BASELINE: 0, **{name: index for index, name in enumerate(others, 1)}}


def _group(group: TrialGroup, groups: Sequence[TrialGroup], slug: str, colours: dict[str, int]) -> Group:
    rows = method_rows(group, colours)
    key = group.key
    copy = _copy_kind(key["data_copy"])
    task, model = key["task"] or "unnamed task", key["model"] or "unnamed model"
    setting = f"{task} ({copy}), {model}"
    title = " · ".join([f"{task} ({copy})", model, *(key[name] for name in ("preset", "dtype") if key[name])])
    execution = group.trials[0].text("execution")  # of the recipe, which all trials of a group share
    if execution not in ("", "eager"):
        title += f" · {execution}"
        setting += f", {execution}"
    # What else tells this group from one with the same title must be in the title too.
    twins = [other for other in groups if other is not group and all(other.key[k] == key[k] for k in _TITLED)]
    for name, words in _MACHINE.items():
        if any(other.key[name] != key[name] for other in twins):
            title += f" · {words} {key[name] or 'not recorded'}"
            setting += f", {words} {key[name] or 'not recorded'}"
    if any(other.key[name] != key[name] for other in twins for name in ("recipe", "epochs", "batch_size")):
        differences = _recipe_differences(group, twins)
        title += f" · {differences}"
        setting += f", {differences}"
    device = next((trial.text("device") for row in rows for trial in row.done if trial.text("device")), "")
    trade, missing_trade = tradeoff_figures(rows, slug)
    course, missing_course = curve_figures(rows, slug)
    any_done = any(row.done for row in rows)
    disturbances = (*competing_programs(group.trials), *unsteady_times(group.trials))
    return Group(
        title=title,
        question="What came out" if key["preset"] == SMOKE else "What should I use?",
        slug=slug,
        subtitle=_subtitle(group, device),
        data_note=_data_note(group),
        headlines=headlines(rows, setting),
        remarks=(
            *_smoke(key["preset"]),
            *disturbances,
            *slow_products(group.trials),
            *resumed(group.trials),
            *repeated_seeds(group),
            *multipliers(rows),
        ),
        summary_table=summary_table(rows, slug, device) if any_done else None,
        flops_table=flops_table(rows, slug) if any_done else None,
        tradeoff_figures=tuple(trade),
        curve_figures=tuple(course),
        missing_figures=(*missing_trade, *missing_course),
    )


def _smoke(preset: str) -> tuple[str, ...]:
    return (
        ("A smoke test shows that everything runs; nothing here says which method to use.",) if preset == SMOKE else ()
    )


SMOKE = "smoke"  # the preset that trains for seconds, to see that everything runs
_MACHINE = {"hardware_id": "hardware", "threads": "threads", "torch": "torch"}
_TITLED = ("task", "data_copy", "model", "preset", "dtype")


def _copy_kind(data_copy: str) -> str:
    kind = re.sub(r"-[0-9a-f]{8}$", "", data_copy)
    return f"{kind} copy" if kind else "data copy not recorded"


def _subtitle(group: TrialGroup, device: str) -> str:
    done = [trial for trial in group.trials if trial.done]
    parts = []
    for column, one, several in (("epochs", "epoch", "epochs"), ("batch_size", "batch size", "batch sizes")):
        values = sorted({value for trial in done if (value := trial.number(column)) is not None})
        texts = [f"{value:g}" for value in values]
        if column == "epochs" and texts:
            parts.append(f"{' or '.join(texts)} {one if texts == ['1'] else several}")
        elif texts:
            parts.append(f"{one if len(texts) == 1 else several} {' or '.join(texts)}")
    hardware = [f"hardware id {group.key['hardware_id'] or 'not recorded'}"]
    if group.key["threads"]:
        hardware.append(f"threads {group.key['threads']}")
    parts.append(f"device {device or 'not recorded'} ({', '.join(hardware)})")
    if group.key["torch"]:
        parts.append(f"torch {group.key['torch']}")
    if group.key["data_copy"]:
        parts.append(f"data copy {group.key['data_copy']}")
    sources = {clean(str(trial.spec["recipe_source"])) for trial in done if trial.spec.get("recipe_source")}
    if sources:
        parts.append(f"recipe of {' or '.join(sorted(sources))}")
    return ", ".join(parts) + "."


def _data_note(group: TrialGroup) -> str:
    copies = [trial.spec.get("data_copy") for trial in group.trials]
    return next((clean(str(copy["note"])) for copy in copies if isinstance(copy, Mapping) and copy.get("note")), "")


def _recipe_differences(group: TrialGroup, twins: Sequence[TrialGroup]) -> str:
    """The fields of the recipe in which a group differs from its twins: `epochs=5, batch_size=128`."""
    if not group.key["recipe"]:
        known = ("epochs", "batch_size")
        differing = [key for key in known if any(other.key[key] != group.key[key] for other in twins)]
        return ", ".join(("recipe not recorded", *(f"{key}={group.key[key]}" for key in differing if group.key[key])))
    own, *others = ({} if not one.key["recipe"] else flatten(json.loads(one.key["recipe"])) for one in (group, *twins))
    differing = [key for key in own if any(other.get(key) != own[key] for other in others)]
    return "recipe " + ", ".join(f"{key}={own[key]}" for key in differing[:4])


def _slugs(groups: Sequence[TrialGroup]) -> list[str]:
    """A name for each group in letters, digits, `.`, `_` and `-`, for anchors and files."""
    slugs: list[str] = []
    for group in groups:
        parts = [
            group.key["task"],
            group.key["model"],
            group.key["preset"],
            group.key["dtype"],
            group.key["hardware_id"][:8],
        ]
        text = "-".join(filter(None, (re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.") for part in parts))).replace(
            "=", ""
        )
        # A letter first: an id that starts with a digit needs escapes in style sheets.
        slug = base = f"g-{text or 'group'}"
        number = 2
        while slug in slugs:
            slug, number = f"{base}-{number}", number + 1
        slugs.append(slug)
    return slugs
