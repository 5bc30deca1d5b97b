"""The options of `run`: what may be typed, in a command line or a TOML file, read as far as it goes without torch."""

from __future__ import annotations

import argparse
import math
import os
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from suite import registry
from suite.errors import UsageError, nearest
from suite.files import read_bytes, read_path
from suite.runs.devices import read_device, read_dtype
from suite.runs.folder.store import ONLY, Store
from suite.runs.planning import read_names, read_override
from suite.runs.spec import read_preset, read_seeds

DEFAULTS = {
    "methods": "dense,sdgp,prunetrain",
    "task": "cifar10",
    "device": "auto",
    "dtype": "auto",
    "data-root": "~/.cache/pdt-data",
    "only": "missing",
    "jobs": "1",
    "engine": "local",
}
SHORTHANDS = {"epochs": "epochs", "batch-size": "batch_size"}  # option: field of the recipe
MOST_JOBS = 1000
LISTS = ("methods", "task", "model", "seeds")  # in a TOML file they may be arrays
RECIPE = ("preset", "recipe", *SHORTHANDS)
TEXTS = (*LISTS, *RECIPE, "device", "dtype", "data-root", "out", "only", "jobs", "engine", "timeout")

EXAMPLES = """\
examples:
  {program} --methods dense,sdgp,prunetrain --task cifar10 --preset smoke
  {program} --methods "dense,sdgp[mode=random|magnitude|rescaled]" --seeds 3 --set recipe.epochs=20

exit status: 0 all trials done; 1 some trial failed (the report is still made); 2 wrong usage or missing data
"""


def program_name() -> str:
    """How this program was called, as one types it again: `pdt`, or `python run_suite.py`."""
    return "python run_suite.py" if Path(sys.argv[0]).name == "run_suite.py" else "pdt"


class _StoreOnce(argparse.Action):
    """Stores an option's value and refuses a second one, in whose favour argparse would forget the first."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        assert isinstance(parser, Parser)
        if option is not None and self.dest in parser.given:
            hint = "; a list has commas and no spaces" if self.dest in LISTS else ""
            parser.error(f"{option} is given twice{hint}")
        parser.given.add(self.dest)
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """argparse, whose errors are `UsageError`s and name the nearest option.

    Attributes:
        given: the options and arguments that were read; an option with one value is read once.
    """

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **keywords)
        self.given: set[str] = set()
        self.register("action", None, _StoreOnce)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse everything.

        Raises:
            UsageError: if something is left over, or an option is given more often than it can be.
        """
        for text in arguments:
            # argparse takes `--` for the end of the options even here, and stores an empty list.
            if text.startswith("--") and text.endswith("=--"):
                raise UsageError(f"{text.removesuffix('=--')} '--': expected one argument")
        self.given.clear()
        namespace, unknown = self.parse_known_args(arguments)
        if unknown:
            # The dashes are left out of the comparison, or every two options would be alike.
            options = [text[2:] for action in self._actions for text in action.option_strings if text[:2] == "--"]
            typed = unknown[0].partition("=")[0]
            if typed.startswith("-"):
                hint = nearest(typed.lstrip("-"), options).replace("mean '", "mean '--")
                raise UsageError(f"no option is called '{typed}'{hint}")
            raise UsageError(f"'{typed}' belongs to no option; a list has commas and no spaces")
        return namespace


@dataclass(frozen=True)
class RunOptions:
    """The options of `run`, checked as far as that goes without torch; empty: not typed, and no default."""

    methods: str
    task: str
    model: str
    preset: str
    recipe: str
    seeds: tuple[int, ...]
    overrides: dict[str, Any]
    device: str
    dtype: str
    data_root: Path
    out: Path | None
    only: str
    jobs: int
    engine: str
    timeout: float | None
    plugins: tuple[Path, ...]


def run_parser() -> Parser:
    """The parser of `run`. Everything is text, or `None` where it is not typed: a TOML file may say it instead."""
    parser = Parser(
        prog=program_name(),
        usage="%(prog)s [run] [OPTION ...]",
        description="Compare ways of pruning during training: accuracy, FLOPs and time, measured.\n\n"
        f"other verbs ({program_name()} VERB --help):\n"
        "  list             methods, tasks, models, engines and reproductions\n"
        "  describe NAME    a method, task, model, reproduction or preset: parameters, size, recipes or parts\n"
        "  check METHOD     hold a method to its contract\n"
        "  report DIR       make the report of a suite's folder again\n"
        "  export DIR DEST  copy what a report is built from, compressed, without models and logs\n"
        "  reproduce NAME   a paper's table or figure, ours beside the published numbers",
        epilog=EXAMPLES.format(program=program_name()),
    )
    add_run_options(parser)
    return parser


def add_run_options(parser: Parser) -> None:
    """Add the options of `run` to the parser of a verb that runs trials."""
    what = parser.add_argument_group("what to run")
    what.add_argument(
        "--methods", metavar="LIST", help=f"methods, with parameters and grids in brackets ({_default('methods')})"
    )
    what.add_argument("--task", metavar="LIST", help=f"tasks ({_default('task')})")
    what.add_argument("--model", metavar="LIST", help="models, such as resnet9[width=0.25] (default: the task's own)")
    what.add_argument("--preset", metavar="NAME", help="smoke, quick or paper (default: paper on CUDA, else quick)")
    what.add_argument(
        "--seeds", metavar="N|LIST", help="a count (3), a list (0,1,7), one seed (7,) (default: 3 for paper, else 1)"
    )
    what.add_argument(
        "--plugin", metavar="FILE", action="append", help="a Python file that registers methods, tasks or models"
    )
    recipe = parser.add_argument_group("recipe")
    recipe.add_argument(
        "--recipe", metavar="NAME", help="with --preset paper: another paper's recipe for the task (describe TASK)"
    )
    recipe.add_argument("--epochs", metavar="N", help="the same as --set recipe.epochs=N (default: the preset's)")
    recipe.add_argument(
        "--batch-size", metavar="N", help="the same as --set recipe.batch_size=N (default: the preset's)"
    )
    recipe.add_argument(
        "--set", metavar="recipe.KEY=VALUE", action="append", help="any field of the recipe; may be repeated"
    )
    where = parser.add_argument_group("where and how")
    where.add_argument("--device", metavar="DEVICE", help=f"auto, cpu, cuda or cuda:N ({_default('device')})")
    where.add_argument(
        "--dtype",
        metavar="TYPE",
        help="float32, bfloat16, float16 (with a loss scale; CUDA only), or auto: bfloat16 where the device has it, "
        "else float32 (default: auto)",
    )
    where.add_argument(
        "--data-root", metavar="DIR", help=f"where data sets lie (default: $PDT_DATA, else {DEFAULTS['data-root']})"
    )
    where.add_argument(
        "--out", metavar="DIR", help="the suite's folder (default: runs/TASK-HASH, the same for the same command)"
    )
    where.add_argument(
        "--only",
        metavar="WHICH",
        help=f"{', '.join(ONLY)}: trials that are not done, that failed, or all ({_default('only')})",
    )
    where.add_argument("--jobs", metavar="N", help=f"trials at a time ({_default('jobs')})")
    where.add_argument("--engine", metavar="NAME", help=f"{', '.join(registry.names('engine'))} ({_default('engine')})")
    where.add_argument("--timeout", metavar="SECONDS", help="kill a trial after so long (default: never)")
    where.add_argument("--config", metavar="FILE", help="a TOML file with these options as keys; the command line wins")


def read_run_options(arguments: Sequence[str]) -> RunOptions:
    """Read the options of `run`, and check all that can be checked without importing torch.

    Plugins are run here, since the names that they register may be typed.

    Raises:
        UsageError: for the first thing that is wrong.
    """
    return resolve_run_options(run_parser().read(arguments))


def resolve_run_options(namespace: argparse.Namespace) -> RunOptions:
    """What was typed for `run`, with the file of `--config`, the environment and the defaults, checked.

    Raises:
        UsageError: as `read_run_options`.
    """
    typed = {name: getattr(namespace, name.replace("-", "_")) for name in (*TEXTS, "plugin", "set")}
    typed = {name: value for name, value in typed.items() if value is not None}
    config = {}
    if namespace.config is not None:
        read_path(namespace.config, "--config")
        config = read_config(Path(namespace.config).expanduser())
    values = {**DEFAULTS, **({"data-root": os.environ["PDT_DATA"]} if os.environ.get("PDT_DATA") else {})}
    values |= {name: value for name, value in (config | typed).items() if name in TEXTS}
    overrides = _overrides(config) | _overrides(typed)

    data_root = read_path(values["data-root"], "--data-root")
    if next(path for path in (data_root, *data_root.parents) if path.exists()).is_file():
        raise UsageError(f"--data-root {values['data-root']}: is a file, not a folder")
    out = read_path(values["out"], "--out") if "out" in values else None
    if out is not None:
        Store(out).check()
    plugins = tuple(read_path(path, "--plugin") for path in typed.get("plugin", config.get("plugin", ())))
    for path in plugins:
        registry.load_plugin(path)
    read_names(values["methods"], "method", "--methods")
    read_names(values["task"], "task", "--task")
    if "model" in values:
        read_names(values["model"], "model", "--model")
    if values["only"] not in ONLY:
        raise UsageError(f"--only '{values['only']}'{nearest(values['only'], ONLY)}")
    if values["engine"] not in registry.names("engine"):
        raise UsageError(f"--engine '{values['engine']}'{nearest(values['engine'], registry.names('engine'))}")
    return RunOptions(
        methods=values["methods"],
        task=values["task"],
        model=values.get("model", ""),
        preset=read_preset(values["preset"]) if "preset" in values else "",
        recipe=values.get("recipe", ""),
        seeds=read_seeds(values["seeds"]) if "seeds" in values else (),
        overrides=overrides,
        device=read_device(values["device"]),
        dtype=read_dtype(values["dtype"]),
        data_root=data_root,
        out=out,
        only=values["only"],
        jobs=_count("jobs", values["jobs"]),
        engine=values["engine"],
        timeout=_seconds(values["timeout"]) if "timeout" in values else None,
        plugins=plugins,
    )


def read_config(path: Path) -> dict[str, Any]:
    """A TOML file of options as the command line would give them: text, and lists of text for `plugin` and `set`.

    Keys may be written with `-` or `_`. Paths in it are taken as they would be on the command line.

    Raises:
        UsageError: if it cannot be read, has a key that is no option, or a value of the wrong kind.
    """
    try:
        content = tomllib.loads(read_bytes(path, "--config").decode())
    except ValueError as error:
        raise UsageError(f"--config {path}: {error}") from error
    except RecursionError:
        raise UsageError(f"--config {path}: is nested too deeply") from None
    found: dict[str, Any] = {}
    for key, value in content.items():
        name, where = key.replace("_", "-"), f"--config {path}: {key}"
        if name not in (*TEXTS, "plugin", "set"):
            raise UsageError(f"--config {path}: no option is called '{key}'{nearest(name, (*TEXTS, 'plugin', 'set'))}")
        if name in found:
            raise UsageError(f"{where} is given twice")
        if name == "set":
            found[name] = list(_assignments(value, where))
        elif name == "plugin":
            found[name] = [_text(item, where) for item in (value if isinstance(value, list) else [value])]
        elif name in LISTS and isinstance(value, list):
            # One seed in an array is a list of seeds, not a count.
            found[name] = ",".join(_text(item, where) for item in value) + ("," if name == "seeds" else "")
        else:
            found[name] = _text(value, where)
    return found


def _assignments(value: Any, where: str, prefix: str = "") -> list[str]:
    """`{recipe = {epochs = 3}}` as `["recipe.epochs=3"]`."""
    if not isinstance(value, dict) or prefix.count(".") > 1:
        raise UsageError(f"{where} must be a table of one table: [set.recipe]")
    found = []
    for key, item in value.items():
        if isinstance(item, dict):
            found += _assignments(item, where, f"{prefix}{key}.")
        elif isinstance(item, list):
            found.append(f"{prefix}{key}=({','.join(_text(part, where) for part in item)})")
        else:
            found.append(f"{prefix}{key}={_text(item, where)}")
    return found


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise UsageError(f"{where} is {value!r}; allowed: text or a number")


def _overrides(source: dict[str, Any]) -> dict[str, Any]:
    """The recipe's fields that one source sets, by `--set` or by a shorthand; twice is a slip."""
    typed = [
        (f"--{option}", f"recipe.{key}={source[option]}") for option, key in SHORTHANDS.items() if option in source
    ]
    found: dict[str, Any] = {}
    for option, assignment in [*typed, *(("--set", text) for text in source.get("set", ()))]:
        key, value = read_override(assignment, option)
        if key in found:
            raise UsageError(f"{option} {assignment}: recipe.{key} is given twice")
        found[key] = value
    return found


def _count(option: str, text: str) -> int:
    # The length first: Python converts no text of more than 4,300 digits.
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MOST_JOBS:
        raise UsageError(f"--{option} '{text}': expected an integer from 1 to {MOST_JOBS}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"--timeout '{text}': expected seconds, more than 0")
    return seconds


def _default(option: str) -> str:
    return f"default: {DEFAULTS[option]}"
