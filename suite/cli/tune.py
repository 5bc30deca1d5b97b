"""The verb `tune`: try the same number of settings of every method on validation images, and choose one of each."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from suite import files
from suite.choices import RECIPE, MethodChoice, ModelChoice, TaskChoice
from suite.cli.options import Parser, RunOptions, add_run_options, program_name, resolve_run_options, whole
from suite.cli.run import mean, run_prepared
from suite.errors import UsageError, nearest
from suite.parameters import show
from suite.trials import search
from suite.trials.folder.records import read_record
from suite.trials.planning import plan, read_choices
from suite.trials.process import forked
from suite.trials.search import COSTS, Setting, Tuned, TunedMethod
from suite.trials.spec import Prepared

log = logging.getLogger(__name__)

MOST = 1000  # settings of a method
# Options of `run` that are not for `tune`
HIDDEN = ("methods", "controls", "skip_unfit", "margin", "target", "exploratory", "config")
LEARNING_RATE = f"{RECIPE}learning_rate"

EPILOG = """\
tune searches the recipe's learning rate and the parameters that a method declares for it (see
describe METHOD). The first setting of each method is its default; --search-seed decides the others.
No trial touches test images: a tenth of the training images decides (--set
recipe.validation_images=N changes it). The same command continues where it stopped; with the same
--out, a larger budget adds settings. The result is DIR/tune.json, and the command of the final
comparison, which uses the test images once.

The options of run apply too (run --help), except --methods, --controls, --skip-unfit,
--margin, --target, --exploratory and --config. --task and --model must name only one.

example:
  {program} tune sdgp,prunetrain --budget 8 --task cifar10

exit status: 0 every method has a choice; 1 a method has none, or a trial failed; 2 wrong usage or missing data
"""


def tune(arguments: Sequence[str]) -> int:
    """Tune methods, and return the exit status.

    Raises:
        UsageError: The command cannot be run; nothing was written.
    """
    namespace = _parser().read(arguments)
    budget, seed = namespace.budget, namespace.search_seed
    only = [name.strip() for name in namespace.search.split(",")] if namespace.search else []
    for option in HIDDEN:
        if getattr(namespace, option) is not None:
            raise UsageError(f"tune: --{option.replace('_', '-')} cannot be given; see tune --help")
    namespace.methods = namespace.list
    options = resolve_run_options(namespace)
    for name in ("evaluate_test", "test_images"):
        if name in options.overrides:
            raise UsageError(f"--set recipe.{name}: tune does not use test images; give it to the final comparison")

    command, planned = forked(lambda: _prepared(options, only, budget, seed))
    log.info("tune: %d settings of each of %s", budget, ", ".join(method.method for method in planned.methods))

    def write() -> list[Path]:
        return [search.write_tuned(command.folder, _result(options, command, planned))]

    status = run_prepared(options, command, write)
    tuned = search.read_tuned(command.folder)
    assert tuned is not None
    print(_as_text(tuned))
    return status if tuned.command else 1


def _prepared(options: RunOptions, only: Sequence[str], budget: int, seed: int) -> tuple[Prepared, Tuned]:
    """Hold out validation images, draw the settings of each method, and prepare their trials as `run` does.

    Returns:
        The trials, and the content of `tune.json` without results.

    Raises:
        UsageError: The user can correct the command. Nothing has been written.
    """
    # These import torch. The process that waits for the trials does not need it.
    import torch

    from suite.cli.preparation import prepare, resolve
    from suite.task import DataCopy
    from suite.trials.building import task_of

    base = resolve(replace(options, seeds=options.seeds or (0,)))
    for kind, text in ((TaskChoice, base.tasks), (ModelChoice, base.models)):
        option = f"--{kind.kind}"
        if text and len(read_choices(text, kind, option)) > 1:
            raise UsageError(f"{option} '{text}': tune searches on one {kind.kind}; name one")
    choices = {str(choice): choice for choice in read_choices(f"dense,{base.methods}", MethodChoice, "tune")}
    known = {name for choice in choices.values() for name in search.searchable(choice)}
    for name in only:
        if name not in known:
            raise UsageError(f"--search '{name}': no method declares a search of it{nearest(name, known)}")

    (dense,) = plan(replace(base, methods="dense", seeds=base.seeds[:1]))
    held_out = dense.recipe["validation_images"]
    if not held_out:
        splits = task_of(dense).load(DataCopy(**dense.data_copy), dense.make_recipe(), 0, torch.device("cpu"))
        held_out = max(1, splits.train.num_samples // 10)
    overrides = {**base.overrides, "validation_images": held_out, "evaluate_test": False}
    spaces = {text: search.space(choice, dense, only, [*base.overrides]) for text, choice in choices.items()}
    drawn = {text: search.draw(choice, spaces[text], budget, seed) for text, choice in choices.items()}
    methods = ",".join(str(choice.with_typed(values)) for text, choice in choices.items() for values in drawn[text])
    command = prepare(options, replace(base, methods=methods, models=dense.model, overrides=overrides))
    trial = command.trials[0]
    alone, copies = replace(command.suite, dtype=trial.dtype), {trial.task: DataCopy(**trial.data_copy)}

    def setting(choice: MethodChoice, values: dict[str, Any]) -> Setting:
        # It is planned alone, because its trial may also be one that another method depends on, under another name.
        text = str(choice.with_typed(values))
        trials = [trial for trial in plan(replace(alone, methods=text), copies) if trial.label == text]
        parameters = {name: value for name, value in values.items() if not name.startswith(RECIPE)}
        rate = {LEARNING_RATE: trials[0].recipe["learning_rate"]}
        return Setting(
            values=values,
            trial_ids=tuple(trial.trial_id for trial in trials),
            label=str(choice.with_typed(parameters)),
            label_with_rate=str(choice.with_typed(parameters | rate)),
        )

    tuned = {
        text: TunedMethod(method=text, space=spaces[text], settings=tuple(setting(choice, v) for v in drawn[text]))
        for text, choice in choices.items()
    }
    return command, Tuned(
        budget=budget,
        search_seed=seed,
        seeds=base.seeds,
        task=trial.task,
        model=trial.model,
        preset=trial.preset,
        validation_images=held_out,
        split_seed=trial.recipe["split_seed"],
        methods=tuple(tuned.values()),
    )


def _parser() -> Parser:
    parser = Parser(
        "tune",
        usage="%(prog)s LIST --budget N [OPTION ...]",
        description="Choose parameters on validation images, with the same number of trials for each method.",
        epilog=EPILOG.format(program=program_name()),
    )
    parser.add_argument("list", metavar="LIST", help="methods to tune, such as sdgp,prunetrain; dense is added")
    parser.add_argument(
        "--budget", metavar="N", type=whole(1, MOST), required=True,
        help="number of settings to try for each method, with the default one",
    )  # fmt: skip
    parser.add_argument("--search", metavar="LIST", help="parameters to search (default: all that a method declares)")
    parser.add_argument(
        "--search-seed", metavar="N", type=whole(0, 2**31 - 1), default=0, help="seed of the settings (default: 0)"
    )
    add_run_options(parser, shown=False)
    return parser


def _result(options: RunOptions, command: Prepared, planned: Tuned) -> Tuned:
    """Return the content of `tune.json` with the results of the trials, the choice and the final comparison."""
    rates = {trial.trial_id: trial.recipe["learning_rate"] for trial in command.trials}
    methods: list[TunedMethod] = []
    shared = None
    for method in planned.methods:
        settings, chosen = search.choose([_with_results(setting, command.folder) for setting in method.settings])
        setting = settings[chosen or 0]
        rate = rates[setting.trial_ids[0]]
        shared = rate if shared is None else shared  # that of dense training, which comes first
        label = setting.label if rate == shared else setting.label_with_rate
        changed = {"settings": settings, "chosen": chosen, "label": "" if chosen is None else label}
        methods.append(method.model_copy(update=changed))
    labels = [method.label for method in methods]
    final = _final_command(options, command, labels, shared) if all(labels) else ""
    return planned.model_copy(update={"methods": tuple(methods), "command": final})


def _with_results(setting: Setting, folder: Path) -> Setting:
    """Return a setting with the means over its trials."""
    records = [read_record(folder / "trials" / trial_id) for trial_id in setting.trial_ids]
    means = {
        column: mean(record.number(column) if record and record.done else None for record in records)
        for column in ("val_accuracy", *COSTS)
    }
    return setting.model_copy(update=means)


def _final_command(options: RunOptions, command: Prepared, methods: Sequence[str], rate: Any) -> str:
    """Return the final comparison: the options of the command, with seeds that had no part in the choice."""
    suite, trial, first = command.suite, command.trials[0], max(command.suite.seeds) + 1
    typed = {
        "methods": ",".join(methods),
        "task": suite.tasks,
        "model": trial.model,
        "preset": suite.preset,
        "recipe": suite.recipe,
        "seeds": f"{first},{first + 1},{first + 2}",
        "device": suite.device if suite.device_index is None else f"{suite.device}:{suite.device_index}",
        "dtype": trial.dtype,
        "data-root": files.without_home(suite.data_root),
        "out": files.without_home(str(command.folder)),
    }
    fields = {"learning_rate": rate, **options.overrides}
    fields.pop("validation_images", None)
    pairs = [(name, value) for name, value in typed.items() if value]
    pairs += [("set", f"{RECIPE}{name}={show(value)}") for name, value in fields.items()]
    pairs += [("plugin", files.without_home(path)) for path in suite.plugins]
    return shlex.join([*program_name().split(), *(word for name, value in pairs for word in (f"--{name}", value))])


def _as_text(content: Tuned) -> str:
    """Return a table of all settings, with an asterisk at each choice, and the command of the final comparison."""
    lines = []
    for method in content.methods:
        count = len(method.settings)
        lines.append(f"{method.method}: {count} settings, chosen on {content.validation_images:,} images")
        for index, setting in enumerate(method.settings):
            values = ", ".join(f"{name}={show(value)}" for name, value in setting.values.items()) or "default"
            accuracy = "-" if setting.val_accuracy is None else f"{100 * setting.val_accuracy:.2f} %"
            mark = "*" if index == method.chosen else " "
            lines.append(f"  {mark} {accuracy:>8}  {values}" + (f"  ({setting.reason})" if setting.reason else ""))
    if content.command:
        return "\n".join([*lines, "final comparison, on the test images and once:", f"  {content.command}"])
    missing = ", ".join(method.method for method in content.methods if method.chosen is None)
    return "\n".join([*lines, f"no setting could be chosen for {missing}; log.txt of the trials has the reasons"])
