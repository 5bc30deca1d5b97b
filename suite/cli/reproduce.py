"""The verb `reproduce`: run the trials of a paper's table or figure and compare them with the published numbers."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite import registry
from suite.cli.options import Parser, RunOptions, add_run_options, program_name, resolve_run_options
from suite.cli.run import run_prepared
from suite.errors import UsageError, nearest
from suite.files import canonical_json
from suite.parameters import split
from suite.trials.folder.records import read_record
from suite.trials.folder.store import Store
from suite.trials.planning import plan, read_names
from suite.trials.spec import Prepared, SuiteSpec, TrialSpec

if TYPE_CHECKING:
    from reports.papers.paper import Part

DECIDED = ("methods", "task", "recipe", "controls", "skip_unfit", "config")
"""Options of `run` that the reproduction decides."""

EPILOG = """\
The options of run apply too (run --help), except those that the reproduction decides: --methods,
--task, --recipe, --controls and --config. The same command continues where it stopped. It writes the
comparison with the published numbers to reproduce/NAME.md, .csv and .svg in the output folder.

reproductions:
{listing}

example:
  {program} reproduce sdgp-table1 --preset quick

exit status: as for run
"""


def reproduce(arguments: Sequence[str]) -> int:
    """Run a reproduction.

    Returns:
        The exit status, as for `run`.

    Raises:
        UsageError: The command cannot be run; nothing was written.
    """
    namespace = parser().read(arguments)
    reproduction = registry.get("reproduction", namespace.name)()
    parts = reproduction.declared.parts
    typed_parts = _read_parts(namespace.parts, [part.name for part in parts])
    for name in DECIDED:
        if getattr(namespace, name) is not None:
            raise UsageError(
                f"reproduce: --{name.replace('_', '-')} cannot be given: {namespace.name} decides its trials"
            )
    options = resolve_run_options(namespace)
    if options.model and len(read_names(options.model, "model", "--model")) > 1:
        raise UsageError(f"--model '{options.model}': expected one model to compare with the paper")

    # Torch and matplotlib take seconds to import, which wrong options should not cost.
    from reports.papers.outcome import write_outcome
    from suite.cli.preparation import provenance_of, rehearse_new, resolve

    base = resolve(options)
    suites = {part.name: _suite(base, part, options) for part in parts}
    asked = typed_parts or [part.name for part in parts if base.preset in part.presets]
    folder = options.out or default_folder(namespace.name, base)
    store = Store(folder)
    store.check()
    plans = _plans(suites, asked, store)
    distinct: dict[str, TrialSpec] = {}  # parts share their dense trials
    for trial in [trial for name in asked for trial in plans[name]]:
        distinct.setdefault(trial.hash, trial)
    trials = list(distinct.values())
    rehearse_new(trials, folder)

    def write() -> list[Path]:
        # Plan again, because the folder may now contain all trials of parts of which it had none before.
        command = [*program_name().split(), "reproduce", *arguments]
        return [write_outcome(reproduction, _plans(suites, asked, store), asked, folder, base, command)]

    suite = _union([suites[name] for name in asked])
    return run_prepared(options, Prepared(suite, trials, folder, provenance_of(suite)), write)


def parser() -> Parser:
    """Return the parser of `reproduce`, with the options of `run` except those that the reproduction decides."""
    entries = sorted(registry.entries("reproduction").items())
    listing = "\n".join(f"  {name:{max(len(name) for name, _ in entries)}}  {entry.summary}" for name, entry in entries)
    options = Parser(
        "reproduce",
        usage="%(prog)s NAME [OPTION ...]",
        description="Repeat a table or figure of a paper and compare the numbers with the published ones.",
        epilog=EPILOG.format(listing=listing, program=program_name()),
    )
    options.add_argument("name", metavar="NAME", help="reproduction, listed below")
    options.add_argument("--parts", metavar="LIST", help="parts to run (default: those of the preset), or all")
    add_run_options(options, shown=False)
    return options


def default_folder(name: str, base: SuiteSpec) -> Path:
    """Return `runs/NAME-HASH`, which does not depend on parts and seeds: one folder collects them."""
    fields = ("models", "preset", "overrides", "device", "dtype")
    determines = canonical_json({field: getattr(base, field) for field in fields})
    return Path("runs", f"{name}-{hashlib.sha256(determines.encode()).hexdigest()[:8]}").absolute()


def _read_parts(text: str | None, known: list[str]) -> list[str]:
    """Return the typed parts, in the order of the reproduction; empty if `--parts` was not given."""
    typed = [] if text is None else known if text == "all" else text.split(",")
    for name in typed:
        if name not in known:
            raise UsageError(f"--parts '{text}': no part is called '{name}'{nearest(name, [*known, 'all'])}")
    return [name for name in known if name in typed]


def _suite(base: SuiteSpec, part: Part, options: RunOptions) -> SuiteSpec:
    return dataclasses.replace(
        base,
        methods=part.methods,
        tasks=part.task,
        models=options.model or (part.small_model if base.preset != "paper" else "") or part.model,
        recipe={"paper": part.recipe, "quick": part.quick_recipe}.get(base.preset, ""),
        seeds=options.seeds or tuple(range(part.seeds[base.preset])),
        overrides={
            **part.overrides,
            **(part.paper_recipe if base.preset == "paper" else {}),
            **options.overrides,
        },
    )


def _plans(suites: dict[str, SuiteSpec], asked: Sequence[str], store: Any) -> dict[str, list[TrialSpec]]:
    """Return the trials of the requested parts, and of other parts whose task has trials in the folder.

    An earlier command may have run another part, which then belongs in the table. A part whose task has no trials in
    the folder is left out, because the data of that task may be missing.
    """

    held = {record.spec.task for path in store.trial_folders() if (record := read_record(path))}
    return {name: plan(suite) for name, suite in suites.items() if name in asked or suite.tasks in held}


def _union(suites: Sequence[SuiteSpec]) -> SuiteSpec:
    """Return the spec for `suite.json`, with the methods, tasks, models, recipes and seeds of all parts."""
    lists: dict[str, Any] = {
        name: ",".join(dict.fromkeys(item for suite in suites for item in split(getattr(suite, name)) if item))
        for name in ("methods", "tasks", "models", "recipe")
    }
    seeds = tuple(sorted({seed for suite in suites for seed in suite.seeds}))
    overrides = {key: value for suite in suites for key, value in suite.overrides.items()}
    return dataclasses.replace(suites[0], **lists, seeds=seeds, overrides=overrides)
