"""Write the page of a reproduction: select its trials and collect the text around the comparison."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.content.provenance import without_options
from reports.data.records import read
from reports.papers import page as reproduced
from reports.papers.comparison import doubts_about_times
from reports.papers.contract import Reproduction, ReproductionData
from reports.papers.paper import Part
from suite.files import without_home
from suite.trials.folder.records import read_record
from suite.trials.folder.store import Store
from suite.trials.planning import with_seed
from suite.trials.spec import SuiteSpec, TrialSpec


def write_outcome(
    reproduction: Reproduction,
    plans: dict[str, list[TrialSpec]],
    asked: Sequence[str],
    folder: Path,
    base: SuiteSpec,
    command: Sequence[str],
) -> Path:
    """Write `reproduce/NAME.{md,csv,svg}` from the trials in a folder.

    Args:
        reproduction: The reproduction.
        plans: Planned trials by part, for the parts whose trials the folder may hold.
        asked: Names of the parts that the command runs.
        folder: The suite's folder.
        base: The command's spec, before the parts change it.
        command: Words of the command line.

    Returns:
        The path of the Markdown file.
    """
    held = read(folder)
    records = {trial.name: trial for trial in held.trials}
    planned = {name: with_other_seeds(specs, folder) for name, specs in plans.items()}
    trials = {name: _by_label(specs, records) for name, specs in planned.items()}
    specs = {spec.trial_id: spec for several in planned.values() for spec in several}
    device = base.device if base.device_index is None else f"cuda:{base.device_index}"
    outcome = reproduction.outcome(ReproductionData(folder, trials, specs, device))
    behind = [records[name] for name in specs if name in records]
    name, declared, paper = reproduction.registered_name, reproduction.declared, reproduction.paper
    unrun = [
        reproduced.PartNotRun(part.name, part.title, other_command(command, part.name))
        for part in declared.parts
        if part.name not in asked and not _is_whole(part.name, plans, records)
    ]
    recipe = [f"recipe.{key}={value}" for key, value in base.overrides.items()]
    compared = [quantity for part in declared.parts for quantity in part.compared]
    groups = {*declared.also, *declared.compared_with, declared.reference}
    groups |= {quantity.published.partition("/")[0] for quantity in compared if quantity.published}
    published = [group for name, group in paper.groups.items() if name in groups]
    return reproduced.write(
        folder,
        reproduced.ReproductionPage(
            name=name,
            title=declared.title,
            summary=_summary(reproduction),
            comparisons=outcome.comparisons,
            figure=outcome.figure,
            reference=paper.groups.get(declared.reference),
            trials=tuple(behind),
            networks=tuple(other_networks(declared.parts, trials)),
            changed=tuple(recipe),
            alone=tuple((paper.groups[name], paper.sources[paper.groups[name].source].where) for name in declared.also),
            unrun=tuple(unrun),
            remarks=(
                *smoke_test(behind),
                *nothing_pruned(behind),
                *outcome.remarks,
                *doubts_about_times(compared, behind),
            ),
            notes=tuple(f"{group.place}: {note}" for group in published for note in group.notes),
            provenance=tuple(map(without_home, (*outcome.provenance, *_provenance(behind, command)))),
        ),
    )


def other_networks(parts: Sequence[Part], trials: Mapping[str, Mapping[str, Sequence[Any]]]) -> list[str]:
    """Return one text for each network that was trained instead of the one that a part names."""
    texts: dict[str, None] = {}
    for part in parts:
        for several in trials.get(part.name, {}).values():
            for trial in several:
                if part.model and trial.text("model") != part.model:
                    texts[f"the network {trial.text('model')} in place of {part.model}"] = None
    return [*texts]


def smoke_test(trials: Sequence[Any]) -> list[str]:
    """Return one line if these trials are a smoke test."""
    if not any(trial.text("preset") == "smoke" for trial in trials):
        return []
    return ["A smoke test shows that everything runs; its numbers compare nothing with the paper."]


def nothing_pruned(trials: Sequence[Any]) -> list[str]:
    """Return one line if no method of these trials pruned anything: short presets are tuned for other networks."""
    methods = [trial for trial in trials if trial.done and trial.text("method") != "dense"]
    if not methods or any(map(_prunes, methods)):
        return []
    return [
        "Nothing was pruned in any of these trials: no channel was removed and no product had zeros to skip. "
        "Differences to dense come from chance and overhead. Short presets are tuned for ResNet-9."
    ]


def _prunes(trial: Any) -> bool:
    pairs = (("inference_flops", "inference_flops_dense"), ("train_flops_effective", "train_flops_dense"))
    return any((trial.number(cost) or 0.0) < (1 - 1e-9) * (trial.number(whole) or 0.0) for cost, whole in pairs)


def _is_whole(part: str, plans: dict[str, list[TrialSpec]], records: dict[str, Any]) -> bool:
    """Return whether every trial of a part was run, by this or an earlier command."""
    return part in plans and all(spec.trial_id in records for spec in plans[part])


def with_other_seeds(planned: Sequence[TrialSpec], folder: Path) -> list[TrialSpec]:
    """Return the trials of this command, then those in the folder that differ from one of them only by seed."""
    specs = [record.spec for path in Store(folder).trial_folders() if (record := read_record(path))]
    all_specs = list(planned)
    held = {spec.hash for spec in specs} - {spec.hash for spec in planned}
    for seed in sorted({spec.seed for spec in specs}):
        # Derive these from the trials of this command, because an earlier one may have used other labels and paths.
        others = {other.hash: other for other in with_seed(planned, seed) if other.hash in held}
        all_specs += others.values()
    return all_specs


def _by_label(specs: Sequence[TrialSpec], records: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the existing trials by label, as in the part's list of methods."""
    by_label: dict[str, tuple[Any, ...]] = {}
    for spec in specs:
        if spec.trial_id in records:
            by_label[spec.label] = (*by_label.get(spec.label, ()), records[spec.trial_id])
    return by_label


def _summary(reproduction: Reproduction) -> str:
    source, number = reproduction.origin, "" if reproduction.declared.reference else ", without a number"
    return f"{reproduction.declared.summary} Published{number}: {source.title} ({source.where})."


def other_command(command: Sequence[str], part: str) -> str:
    """Return the command line that runs another part."""
    return without_home(shlex.join([*without_options(command, "--parts"), "--parts", part]))


def _provenance(trials: Sequence[Any], command: Sequence[str]) -> list[str]:
    """Return lines that say where the numbers come from; the suite's report has the rest."""
    lines = [f"Command: {shlex.join(command)}"]
    done = sum(trial.done for trial in trials)
    lines.append(f"Trials: {len(trials)}, of which {done} done. The suite's own report: ../report.md")
    commits = sorted({str(git.get("commit", ""))[:12] for trial in trials if (git := trial.provenance.get("git"))})
    if commits:
        lines.append(f"Source: commit {', '.join(commits)}")
    notes = {copy.get("note", "") for trial in trials if (copy := trial.spec.data_copy)}
    lines += [f"Data: {note}" for note in sorted(filter(None, notes))]
    return lines
