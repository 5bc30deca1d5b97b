"""The methods of a suite's folder whose training time can be measured, each with the trial that is run again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from suite.engine.cost.hardware import hardware_id
from suite.engine.cost.torch_hardware import hardware_facts
from suite.errors import UsageError, nearest
from suite.measure.times import TIMES, PassTime
from suite.parameters import split
from suite.trials.folder.reader import read_trials
from suite.trials.folder.records import TrialRecord
from suite.trials.folder.table import minor_version
from suite.trials.groups import BASELINE, KEY, MACHINE, TrialGroup, group_trials, label, seed_of, tested_trials
from suite.trials.spec import TrialSpec
from suite.trials.stages import Stage, StageList, stage_file

AGAIN = "timed"
"""Folder in that of a suite, for trials that were trained again because their states were not here."""
Timed = Callable[[Mapping[str, str], str], Sequence[PassTime]]


@dataclass(frozen=True)
class Candidate:
    """One method of one group of comparable trials.

    Attributes:
        key: Text of each part of the group's key.
        label: The method with its parameters.
        trial: Name of the folder of the trial that is run again.
        spec: Specification of that trial; `None` if it cannot be run again.
        stages: Stages of that trial; empty if it cannot be run again.
        reconfigure_s: Recorded seconds of its reconfigurations, by epoch.
        threads: Threads of the trial; 0 if they are not known.
        is_elsewhere: Whether another machine trained it.
        seeds: Number of seeds that can be run again.
        reason: Why the trial cannot be run again; empty if it can.
        lacking: Specification of a trial that has no states. Training it again would make them.
        home: Folder whose `trials` has the trial: that of the suite, or `AGAIN` in it.
        number: Number of the pass, from 0.
        place: Number of the method among those that the pass measures, from 1.
    """

    key: Mapping[str, str]
    label: str
    trial: str
    spec: TrialSpec | None = None
    stages: tuple[Stage, ...] = ()
    reconfigure_s: Mapping[int, float] = dataclasses.field(default_factory=dict)
    threads: int = 0
    is_elsewhere: bool = False
    seeds: int = 1
    reason: str = ""
    lacking: TrialSpec | None = None
    home: Path = Path()
    number: int = 0
    place: int = 1


def find_candidates(
    folder: Path, verb: str, methods: str = "", with_dense: bool = False, timed: Timed | None = None
) -> list[Candidate]:
    """Return the methods of every group of a folder.

    Args:
        folder: Folder of a suite.
        verb: Verb of the command, for messages.
        methods: Comma list of methods, with or without their parameters; empty for all methods.
        with_dense: Whether dense training may be one of them. It is if it is named, or if the folder has no other
            method.
        timed: Returns a method's earlier passes, if each method is to be timed. Of the seeds that can be run again, the
            one with the fewest passes is next. Trials of other machines are then measured too, in groups of this
            machine.

    Raises:
        UsageError: The folder has no results, or no finished trial of one of the methods.
    """
    candidates = []
    repeated = _repeated(folder / AGAIN)
    groups = group_trials(tested_trials(read_trials(folder)[0]))[0]
    if timed:
        groups = list(_on_this_machine(groups, [group.key for group in TIMES.read(folder)]))
    for group in groups:
        by_label: dict[str, list[TrialRecord]] = {}
        for trial in group.trials:
            if trial.done and (with_dense or label(trial) != BASELINE):
                by_label.setdefault(label(trial), []).append(trial)
        for name, trials in by_label.items():
            several = [_candidate(folder, group.key, name, trial, repeated) for trial in sorted(trials, key=seed_of)]
            ready = [candidate for candidate in several if candidate.spec is not None]
            ready = ready or [candidate for candidate in several if candidate.lacking is not None][:1] or several[:1]
            passes = [measured.trial for measured in timed(group.key, name)] if timed else []
            candidates.append(
                dataclasses.replace(min(ready, key=lambda one: passes.count(one.trial)), seeds=len(ready))
            )
    if not methods:
        candidates = [candidate for candidate in candidates if candidate.label != BASELINE] or candidates
    if not candidates:
        which = "no method" if with_dense else f"no method other than {BASELINE}"
        raise UsageError(f"{verb} {folder}: {which} has a finished trial that was evaluated on test images")
    return candidates if not methods else _chosen(candidates, split(methods))


def _repeated(folder: Path) -> dict[str, TrialRecord]:
    """Return the finished trials of `AGAIN` by name, except those that another machine trained."""
    done = [trial for trial in read_trials(folder)[0] if trial.done]
    here = {device: this_machine(device).items() for device in {trial.text("device") for trial in done}}
    return {one.name: one for one in done if all(one.text(name) == text for name, text in here[one.text("device")])}


def _on_this_machine(groups: Iterable[TrialGroup], timed: Sequence[Mapping[str, str]]) -> Iterator[TrialGroup]:
    """Yield one group for each setting. A method that this machine did not train has the trials of other machines.

    The group has the key of earlier passes of this machine, otherwise that of most of this machine's trials.
    """
    settings: dict[tuple[str, ...], list[TrialGroup]] = {}
    for group in groups:
        device = next(filter(None, (trial.text("device") for trial in group.trials)), "")
        setting = (device, *(group.key[name] for name in KEY if name not in MACHINE))
        settings.setdefault(setting, []).append(group)
    for (device, *_), several in settings.items():
        here = this_machine(device)
        own = [group for group in several if all(group.key[name] in ("", text) for name, text in here.items())]
        own.sort(key=lambda group: -sum(trial.done for trial in group.trials))
        new = {**several[0].key, **here}
        earlier = [key for key in timed if {**key, "threads": new["threads"]} == new]
        key = [*earlier, *(group.key for group in own), new][0]
        known = {label(trial) for group in own for trial in group.trials if trial.done}
        others = [trial for group in several if group not in own for trial in group.trials]
        trials = [trial for group in own for trial in group.trials]
        trials += [one.model_copy(update={"elsewhere": True}) for one in others if one.done and label(one) not in known]
        yield TrialGroup(key, tuple(trials))


def this_machine(device: str) -> dict[str, str]:
    """Return the hardware and the version of torch as a group's key has them; empty without the device."""
    if device == "cuda" and not torch.cuda.is_available():
        return {}
    hardware = hardware_id(hardware_facts(torch.device(device or "cpu")))
    return {"hardware_id": hardware, "torch": minor_version(torch.__version__)}


def _chosen(found: Sequence[Candidate], typed: Iterable[str]) -> list[Candidate]:
    known = {name for candidate in found for name in (candidate.label, _parts(candidate.label)[0])}
    chosen = []
    for text in typed:
        own = [one for one in found if text == _parts(one.label)[0] or _parts(text) == _parts(one.label)]
        if text == BASELINE and not own:
            raise UsageError(f"--methods {BASELINE}: the other methods are measured next to it; name one of them")
        if not own:
            raise UsageError(f"--methods '{text}': the folder has no finished trial of it{nearest(text, known)}")
        chosen += own
    return [candidate for candidate in found if candidate in chosen]


def _parts(method: str) -> tuple[str, frozenset[str]]:
    """Return the name and the parameters of a method, which may be typed in any order."""
    name, _, parameters = method.partition("[")
    return name, frozenset(split(parameters.removesuffix("]")))


def _candidate(
    folder: Path, key: Mapping[str, str], name: str, trial: TrialRecord, repeated: Mapping[str, TrialRecord]
) -> Candidate:
    """Return a candidate for a finished trial, or for the same trial in `AGAIN` if the first one lacks states."""
    place = folder / "trials" / trial.name
    refused = Candidate(key, name, trial.name, home=folder)
    try:
        if trial.damage:
            raise ValueError(trial.damage[0])
        if not trial.epochs:
            raise ValueError("its trial has no epochs.jsonl")
        stages = StageList(trial.epochs).stages()
    except ValueError as error:
        return dataclasses.replace(refused, reason=str(error))
    spec = trial.spec
    if spec.processes > 1:
        reason = f"it was trained by {spec.processes} processes, and only steps of one process are measured"
        return dataclasses.replace(refused, reason=reason)
    missing = [stage.epoch for stage in stages[1:] if not stage_file(place, stage.epoch).is_file()]
    reason = f"no stages: its steps changed in epoch {missing[0]}, whose state was not kept" if missing else ""
    is_cut = any(record.get("reconfigured") for record in trial.epochs)
    if trial.elsewhere and (is_cut or spec.make_recipe().precise_bn):
        reason = f"its {'reconfigurations' if is_cut else 'passes of precise_bn'} were timed on another machine"
    if any(not (folder / "trials" / other / "model.pt").is_file() for other in spec.depends_on.values()):
        reason = reason or "a trial that it depends on has no model.pt here"
    if reason and trial.name in repeated:
        again = _candidate(folder / AGAIN, key, name, repeated[trial.name], {})
        if again.spec is not None:
            return again
    if reason:
        return dataclasses.replace(refused, reason=f"{reason}; time trains a seed of it again", lacking=spec)
    return dataclasses.replace(
        refused,
        spec=spec,
        stages=tuple(stages),
        reconfigure_s=_by_epoch(trial),
        threads=int(trial.number("threads") or 0),
        is_elsewhere=trial.elsewhere,
    )


def _by_epoch(trial: TrialRecord) -> dict[int, float]:
    """Return the seconds of a trial's reconfigurations, which its records add up."""
    totals = [record.get("reconfigure_time_s") or 0.0 for record in trial.epochs]
    return {epoch: total - before for epoch, (before, total) in enumerate(pairwise([0.0, *totals]), 1)}
