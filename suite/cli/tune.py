"""The verb `tune`: try the same number of settings of every method on validation images, and choose one of each."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite import files
from suite.choices import RECIPE
from suite.cli.options import Parser, RunOptions, add_run_options, program_name, resolve_run_options, whole
from suite.cli.run import run_prepared
from suite.errors import UsageError
from suite.parameters import show
from suite.trials.engines.forked import forked
from suite.trials.folder.records import read_record
from suite.trials.folder.store import Store
from suite.trials.folder.tuning import COSTS, Setting, Tuned, TunedMethod, choose, write_tuned
from suite.trials.search import MethodSearch, shown
from suite.trials.spec import Prepared, SuiteSpec, TrialSpec

log = logging.getLogger(__name__)

MOST = 1000  # settings of a method
HIDDEN = ("methods", "controls", "skip_unfit", "margin", "target", "config")  # options of `run` that are not for `tune`
LEARNING_RATE = f"{RECIPE}learning_rate"

EPILOG = """\
tune searches the recipe's learning rate and the parameters that a method declares for it (see
describe METHOD). The first setting of each method is its default; --search-seed decides the others.
No trial touches test images: a tenth of the training images decides (--set
recipe.validation_images=N changes it). The same command continues where it stopped, and a larger
budget adds settings. The result is DIR/tune.json, and the command of the final comparison, which
uses the test images once.

The options of run apply too (run --help), except --methods, --controls, --skip-unfit,
--margin, --target and --config. --task and --model must name only one.

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

    suite, searches, folder, provenance = forked(lambda: _prepared(options, only, budget, seed))
    trials = list({trial.hash: trial for one in searches for trial in one.in_order}.values())
    log.info("tune: %d settings of each of %s", budget, ", ".join(one.method for one in searches))
    written: list[Tuned] = []

    def write() -> list[Path]:
        written.append(_result(suite, searches, folder, budget, seed, _final_options(options, suite, folder)))
        return [write_tuned(folder, written[0])]

    status = run_prepared(options, Prepared(suite, trials, folder, provenance), write)
    print(_as_text(written[0]))
    return status if all(one.chosen is not None for one in written[0].methods) else 1


def _prepared(*given: Any) -> tuple[SuiteSpec, list[MethodSearch], Path, dict[str, Any]]:
    from suite.cli.tune_preparation import prepare  # imports torch, in a process of its own

    return prepare(*given)


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


def _result(
    suite: SuiteSpec, searches: Sequence[MethodSearch], folder: Path, budget: int, seed: int, final: Sequence[str]
) -> Tuned:
    """Return the content of `tune.json` from the records of the trials."""
    methods: list[TunedMethod] = []
    shared = 0.0  # learning rate of dense training, which comes first, and of the final comparison
    for search in searches:
        tried, chosen = choose(
            [_setting(values, trials, folder) for values, trials in zip(search.settings, search.trials, strict=True)]
        )
        label, rate = "", search.trials[chosen or 0][0].recipe["learning_rate"]
        if not methods:
            shared = rate
        if chosen is not None:
            label = search.labels[chosen]
            if rate != shared and f"{LEARNING_RATE}=" not in label:
                rate_text = f"{LEARNING_RATE}={show(rate)}"
                label = f"{label.removesuffix(']')},{rate_text}]" if label.endswith("]") else f"{label}[{rate_text}]"
        methods.append(
            TunedMethod(
                method=search.method,
                space=tuple(dict(shown(dimension)) for dimension in search.dimensions),
                settings=tried,
                chosen=chosen,
                label=label,
            )
        )
    complete = all(search.chosen is not None for search in methods)
    labels = ",".join(search.label for search in methods)
    command = [*program_name().split(), "--methods", labels, "--set", f"{LEARNING_RATE}={show(shared)}", *final]
    trial = searches[0].trials[0][0]
    return Tuned(
        budget=budget,
        search_seed=seed,
        seeds=suite.seeds,
        task=trial.task,
        model=trial.model,
        preset=trial.preset,
        validation_images=trial.recipe["validation_images"],
        split_seed=trial.recipe["split_seed"],
        methods=tuple(methods),
        command=shlex.join(command) if complete else "",
    )


def _setting(values: Mapping[str, Any], trials: Sequence[TrialSpec], folder: Path) -> Setting:
    records = [read_record(Store(folder).trial_folder(trial.trial_id)) for trial in trials]
    done = [record for record in records if record and record.done]

    def mean(column: str) -> float | None:
        numbers = [record.result.get(column) for record in done] if len(done) == len(records) else []
        known = [float(number) for number in numbers if number is not None]
        return sum(known) / len(known) if numbers and len(known) == len(numbers) else None

    training, inference = map(mean, COSTS)
    return Setting(
        values=dict(values),
        trial_ids=tuple(trial.trial_id for trial in trials),
        val_accuracy=mean("val_accuracy"),
        train_flops_effective=training,
        inference_flops_effective=inference,
    )


def _final_options(options: RunOptions, suite: SuiteSpec, folder: Path) -> list[str]:
    """Return the options of the final comparison: those of the command, with seeds that had no part in the choice."""
    first = max(suite.seeds) + 1
    device = suite.device if suite.device_index is None else f"{suite.device}:{suite.device_index}"
    typed = {
        "task": suite.tasks,
        "model": suite.models,
        "preset": suite.preset,
        "recipe": suite.recipe,
        "seeds": f"{first},{first + 1},{first + 2}",
        "device": device,
        "dtype": suite.dtype,
        "data-root": files.without_home(suite.data_root),
        "out": files.without_home(str(folder)),
    }
    words = [word for name, value in typed.items() if value for word in (f"--{name}", value)]
    kept = {name: value for name, value in options.overrides.items() if name != "validation_images"}
    words += [word for name, value in kept.items() for word in ("--set", f"{RECIPE}{name}={show(value)}")]
    return [*words, *(word for path in suite.plugins for word in ("--plugin", files.without_home(path)))]


def _as_text(content: Tuned) -> str:
    """Return a table of all settings, with an asterisk at each choice, and the command of the final comparison."""
    lines = []
    for method in content.methods:
        lines.append(
            f"{method.method}: {len(method.settings)} settings, chosen on {content.validation_images:,} images"
        )
        for index, setting in enumerate(method.settings):
            values = ", ".join(f"{name}={show(value)}" for name, value in setting.values.items()) or "default"
            accuracy = "-" if setting.val_accuracy is None else f"{100 * setting.val_accuracy:.2f} %"
            mark = "*" if index == method.chosen else " "
            lines.append(f"  {mark} {accuracy:>8}  {values}" + (f"  ({setting.reason})" if setting.reason else ""))
    if content.command:
        lines += ["final comparison, on the test images and once:", f"  {content.command}"]
    else:
        missing = [method.method for method in content.methods if method.chosen is None]
        lines.append(f"no setting could be chosen for {', '.join(missing)}; log.txt of the trials has the reasons")
    return "\n".join(lines)
