"""Arguments of `run` and of the other verbs that run trials, with their help texts and defaults."""

from __future__ import annotations

import argparse

from suite import registry
from suite.command.options.parser import Parser, program_name
from suite.files import DATA_ROOT

DEFAULTS = {
    "methods": "dense,sdgp,prunetrain",
    "task": "cifar10",
    "device": "auto",
    "dtype": "auto",
    "data-root": DATA_ROOT,
    "only": "missing",
    "jobs": "1",
    "nproc-per-trial": "1",
    "engine": "local",
    "margin": "0.5",
}
SHORTHANDS = {"epochs": "epochs", "batch-size": "batch_size"}  # option: field of the recipe
LISTS = ("methods", "task", "model", "seeds", "target", "log")  # options that a TOML file may give as arrays
RECIPE = ("preset", "recipe", *SHORTHANDS)
TEXTS = (
    *LISTS,
    *RECIPE,
    "device",
    "dtype",
    "data-root",
    "out",
    "only",
    "jobs",
    *("engine", "ray-address", "timeout", "nproc-per-trial"),
    *("controls", "margin"),
)

EXAMPLES = """\
examples:
  {program} --methods dense,sdgp,prunetrain --task cifar10 --preset smoke
  {program} --methods "dense,sdgp[mode=random|magnitude|rescaled]" --seeds 3 --set recipe.epochs=20

exit status: 0 all trials are done; 1 a trial failed (the report is still written); 2 wrong usage or missing data
"""


def run_parser() -> Parser:
    """Return the parser of `run`; values are text, or `None` where nothing was typed."""
    parser = Parser(
        prog=program_name(),
        usage="%(prog)s [run] [OPTION ...]",
        description="Train with several pruning methods and compare accuracy, FLOPs and time.\n\n"
        f"other verbs ({program_name()} VERB --help):\n"
        "  plan             predict time, FLOPs and memory of the trials from short probes\n"
        "  list [KIND]      list methods, tasks, models, engines, callbacks, ...\n"
        "  describe NAME    show a method's parameters, a model's size, a task's recipes, ...\n"
        "  check METHOD     check a method against its contract\n"
        "  report DIR       update results.csv and the report of a suite\n"
        "  time DIR         measure training times relative to dense, without the machine's drift\n"
        "  profile DIR      measure where the time of a step goes, by part, layer and product\n"
        "  tune LIST        choose parameters on validation images, with equal budgets\n"
        "  export DIR DEST  copy a suite without models and logs, to share or commit it\n"
        "  merge A B -o DIR collect the trials of several folders in a new one\n"
        "  compare A B      what differs between two folders: accuracy, time, FLOPs, settings, versions\n"
        "  reproduce NAME   repeat a table or figure of a paper and compare the numbers",
        epilog=EXAMPLES.format(program=program_name()),
    )
    add_run_options(parser)
    return parser


def add_run_options(parser: Parser) -> None:
    """Add the options of `run` to the parser of a verb that runs trials."""
    parser.lists = LISTS
    _add_trials(parser.add_argument_group("trials"))
    _add_recipe(parser.add_argument_group("recipe"))
    _add_execution(parser.add_argument_group("execution"))


def _add_trials(what: argparse._ArgumentGroup) -> None:
    what.add_argument(
        "--methods", metavar="LIST", help=f"methods with parameters or grids in brackets ({_default('methods')})"
    )
    what.add_argument("--task", metavar="LIST", help=f"tasks ({_default('task')})")
    what.add_argument(
        "--model",
        metavar="LIST",
        help="models, such as resnet9[width=0.25] or torchvision/vgg11 (default: the task's own)",
    )
    what.add_argument(
        "--preset", metavar="NAME", help="smoke, quick or paper (default: paper on CUDA, otherwise quick)"
    )
    what.add_argument(
        "--seeds",
        metavar="N|LIST",
        help="count (3), list (0,1,7) or single seed (7,) (default: 3 for paper, otherwise 1)",
    )
    what.add_argument(
        "--controls",
        metavar="true|false",
        nargs="?",
        const="true",
        help="add control trials: dense with fewer epochs, dense twice, dense as narrow as each pruned network, and "
        "random selection; a verdict needs them and --seeds 3",
    )
    what.add_argument(
        "--margin",
        metavar="POINTS",
        help="smallest difference in accuracy that matters for the report's verdict, in percentage points; declare "
        f"it before the first trial (default: {DEFAULTS['margin']})",
    )
    what.add_argument(
        "--target",
        metavar="PERCENT",
        help="accuracies to which the report gives time, FLOPs and energy: 90 or 88,90 (default: dense's mean "
        "accuracy minus the margin)",
    )
    what.add_argument(
        "--plugin",
        metavar="FILE",
        action="append",
        help="Python file that registers methods, tasks, models or callbacks; may be repeated",
    )


def _add_recipe(recipe: argparse._ArgumentGroup) -> None:
    recipe.add_argument(
        "--recipe", metavar="NAME", help="another recipe of the preset, mostly of a paper (listed by describe TASK)"
    )
    recipe.add_argument("--epochs", metavar="N", help="short for --set recipe.epochs=N")
    recipe.add_argument("--batch-size", metavar="N", help="short for --set recipe.batch_size=N")
    recipe.add_argument(
        "--set",
        metavar="recipe.KEY=VALUE",
        action="append",
        help="set a field of the recipe (listed by describe TASK); may be repeated",
    )


def _add_execution(where: argparse._ArgumentGroup) -> None:
    where.add_argument("--device", metavar="DEVICE", help=f"auto, cpu, cuda or cuda:N ({_default('device')})")
    where.add_argument(
        "--dtype",
        metavar="TYPE",
        help="float32, bfloat16, float16 (CUDA only, with a loss scale) or auto: bfloat16 if the hardware multiplies "
        "matrices of it, otherwise float32 (default: auto)",
    )
    where.add_argument(
        "--data-root",
        metavar="DIR",
        help=f"folder of the data sets (default: $PDT_DATA, otherwise {DEFAULTS['data-root']})",
    )
    where.add_argument(
        "--out", metavar="DIR", help="output folder (default: runs/TASK-HASH, where the hash depends on the trials)"
    )
    where.add_argument(
        "--only",
        metavar="WHICH",
        help=f"which trials to run: missing (not done yet), failed or all ({_default('only')})",
    )
    where.add_argument("--jobs", metavar="N", help=f"number of trials to run at the same time ({_default('jobs')})")
    where.add_argument(
        "--nproc-per-trial",
        metavar="N",
        help=f"number of processes that train a model together, each with its share of a batch "
        f"({_default('nproc-per-trial')})",
    )
    where.add_argument(
        "--engine",
        metavar="NAME",
        help=f"how trials are run: {', '.join(registry.names('engine'))} ({_default('engine')})",
    )
    where.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="with --engine ray: auto (the running cluster), local (a new one on this machine) or HOST:PORT "
        "(default: auto)",
    )
    where.add_argument(
        "--log",
        metavar="LIST",
        help=f"callbacks of every trial: {', '.join(registry.names('callback'))}, or those of a plugin (default: none)",
    )
    where.add_argument("--timeout", metavar="SECONDS", help="kill a trial that takes longer (default: no limit)")
    where.add_argument(
        "--config", metavar="FILE", help="TOML file with these options as keys; the command line takes precedence"
    )


def _default(option: str) -> str:
    return f"default: {DEFAULTS[option]}"
