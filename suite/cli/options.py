"""The parser of all verbs, and the options of `run`, which other verbs share: declared once, typed or in a TOML file.

Each option is given at most once, without abbreviations, and a wrong one gets the nearest name. This module imports no
torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

from annotated_types import Ge, Gt, Le

from suite import registry
from suite.choices import TaskChoice
from suite.errors import UsageError, nearest
from suite.files import DATA_ROOT, default_data_root, read_bytes, read_path
from suite.parameters import allowed, convert, show
from suite.trials.callbacks.calls import read_callbacks
from suite.trials.folder.targets import read_targets
from suite.trials.planning import read_choices, read_names, read_override
from suite.trials.spec import DTYPES, PRESETS, read_device, read_seeds

LINE_WIDTH = 140  # characters, where the output is not a terminal
LISTS = ("methods", "task", "model", "seeds", "target", "log")
"""Options that a TOML file may give as arrays."""
REPEATED = ("plugin", "set")
"""Options that may be repeated, and the destinations of those that are short for them."""


def program_name() -> str:
    """Return the command that started this program: `pdt` or `python run_suite.py`."""
    return "python run_suite.py" if Path(sys.argv[0]).name == "run_suite.py" else "pdt"


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `UsageError` and suggests the nearest option."""

    def __init__(self, verb: str = "", **keywords: Any) -> None:
        super().__init__(
            prog=f"{program_name()} {verb}".strip(),
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **keywords,
        )

    def add_plugins(self, text: str = "Python file that registers it") -> None:
        """Add `--plugin`, which may be repeated."""
        self.add_argument("--plugin", metavar="FILE", action="append", default=[], help=text)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"'{value}'{nearest(value, action.choices)}")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all arguments.

        Raises:
            UsageError: An argument is unknown, or an option is given more than once.
        """
        if empty := [text for text in arguments if text.startswith("--") and text.endswith("=--")]:
            raise UsageError(f"{empty[0]}: expected a value")  # argparse would store an empty list
        names = [text.partition("=")[0] for text in arguments]
        for action in self._actions:  # argparse alone would keep the last value
            typed = [name for name in names if name in action.option_strings]
            if len(typed) > 1 and action.dest not in REPEATED:
                hint = "; lists are separated by commas, without spaces" if action.dest in LISTS else ""
                raise UsageError(f"{typed[-1]} is given twice{hint}")
        namespace, unknown = self.parse_known_args(arguments)
        if unknown:
            # Names are compared without dashes, which would make any two options similar.
            options = [text[2:] for action in self._actions for text in action.option_strings if text[:2] == "--"]
            name = unknown[0].partition("=")[0]
            if name.startswith("-"):
                raise UsageError(f"no option is called '{name}'{nearest(name.lstrip('-'), options, '--')}")
            is_field = name.startswith("recipe.")
            hint = "repeat --set for each field" if is_field else "lists are separated by commas, without spaces"
            raise UsageError(f"unexpected argument '{name}'; {hint}")
        return namespace


def of_type(annotation: Any) -> Callable[[str], Any]:
    """Return the `type` of an option whose values have a type with bounds, as parameters have."""

    def read(text: str) -> Any:
        try:
            return convert(text, annotation, "")
        except UsageError:
            raise argparse.ArgumentTypeError(f"'{text}'; allowed: {allowed(annotation)}") from None

    return read


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return the `type` of an option whose value is an integer in this range."""
    return of_type(Annotated[int, Ge(least), Le(most)])


def read_data_root(text: str) -> Path:
    """Return the folder of the data sets, which exists unless it is the default.

    Raises:
        UsageError: It does not exist, or is a file.
    """
    path = read_path(text, "--data-root")
    if next(folder for folder in (path, *path.parents) if folder.exists()).is_file():
        raise UsageError(f"--data-root {text}: is a file, not a folder")
    if text != default_data_root() and not path.exists():  # a download creates the default
        raise UsageError(f"--data-root {text}: there is no such folder; create it to download into it")
    return path


def _out(text: str) -> Path:
    from suite.trials.folder.store import Store  # not needed to list

    path = read_path(text, "--out")
    Store(path).check()
    return path


def _ray_address(text: str) -> str:
    if not re.fullmatch(r"auto|local|[^\s:/]+:[0-9]{1,5}", text):
        raise UsageError(f"--ray-address '{text}': expected auto, local or HOST:PORT")
    return text


def _field(key: str, option: str) -> Callable[[str], tuple[str, Any]]:
    """Return the `type` of an option that is short for `--set recipe.KEY=VALUE`."""
    return lambda text: read_override(f"recipe.{key}={text}", option)


@dataclass(frozen=True)
class RunOptions:
    """Options of `run` with their defaults, checked without torch. Empty values were not typed.

    Attributes:
        overrides: Fields of the recipe with values of their types.
        data_root_typed: Whether the data root is neither the default nor that of the environment.
    """

    data_root: Path
    data_root_typed: bool
    overrides: Mapping[str, Any]
    methods: str = "dense,sdgp,prunetrain"
    task: str = "cifar10"
    model: str = ""
    preset: str = ""
    seeds: tuple[int, ...] = ()
    controls: bool = False
    margin: float = 0.005
    targets: tuple[float, ...] = ()
    skip_unfit: bool = False
    plugins: tuple[Path, ...] = ()
    recipe: str = ""
    device: str = "auto"
    dtype: str = "auto"
    out: Path | None = None
    only: str = "missing"
    jobs: int = 1
    processes: int = 1
    engine: str = "local"
    ray_address: str = "auto"
    callbacks: tuple[str, ...] = ()
    timeout: float | None = None


_POSITIVE = of_type(Annotated[float, Gt(0)])
_ENGINES, _CALLBACKS = tuple(registry.names("engine")), registry.names("callback")
# Metavariable, help, and type or choices of each option; the help fits on a line of 80 characters, and docs/ says more.
_OPTIONS: dict[str, dict[str, tuple[str, str, Callable[[str], Any] | tuple[str, ...]]]] = {
    "trials": {
        "methods": ("LIST", "methods (default: {methods})", str),
        "task": ("LIST", "tasks (default: {task})", str),
        "model": ("LIST", "models (default: the task's own)", str),
        "preset": ("NAME", "smoke, quick or paper (default: quick, CUDA: paper)", PRESETS),
        "seeds": ("N|LIST", "count, or list: 0,1 or 7, (default: 1, for paper 3)", read_seeds),
        "controls": ("true|false", "add the dense and random trials that a verdict needs", of_type(bool)),
        "margin": ("POINTS", "difference in accuracy that matters (default: 0.5)", lambda text: _POSITIVE(text) / 100),
        "target": ("PERCENT", "accuracies to reach: 88,90 (default: dense - margin)", read_targets),
        "skip-unfit": ("true|false", "leave out methods that a network does not fit", of_type(bool)),
        "plugin": ("FILE", "Python file with methods, tasks, ...; may be repeated", str),
    },
    "recipe": {
        "recipe": ("NAME", "another recipe of the preset (see describe TASK)", str),
        "epochs": ("N", "short for --set recipe.epochs=N", _field("epochs", "--epochs")),
        "batch-size": ("N", "short for --set recipe.batch_size=N", _field("batch_size", "--batch-size")),
        "set": ("recipe.KEY=VALUE", "set a field (see describe TASK); may be repeated", read_override),
    },
    "execution": {
        "device": ("DEVICE", "auto, cpu, cuda or cuda:N (default: {device})", read_device),
        "dtype": ("TYPE", "float32, bfloat16, float16 or auto (default: {dtype})", DTYPES),
        "data-root": ("DIR", f"data sets (default: $PDT_DATA, or {DATA_ROOT})", read_data_root),
        "out": ("DIR", "output folder (default: runs/TASK-HASH)", _out),
        "only": ("WHICH", "run missing, failed or all trials (default: {only})", ("missing", "failed", "all")),
        "jobs": ("N", "trials at the same time (default: {jobs})", whole(1, 1000)),
        "nproc-per-trial": ("N", "processes that train a model together (default: {processes})", whole(1, 1000)),
        "engine": ("NAME", f"{' or '.join(_ENGINES)} (default: {{engine}})", _ENGINES),
        "ray-address": ("ADDRESS", "auto, local or HOST:PORT (default: {ray_address})", _ray_address),
        "log": ("LIST", f"callbacks: {', '.join(_CALLBACKS)}, or a plugin's (default: none)", str),
        "timeout": ("SECONDS", "kill a trial that takes longer (default: no limit)", _POSITIVE),
        "config": ("FILE", "TOML file with these options; typed ones come first", str),
    },
}
_FIELDS = {"target": "targets", "nproc_per_trial": "processes", "log": "callbacks"}
"""Fields of `RunOptions` that are not called as their options."""

EXAMPLES = """\
example:
  {program} --methods "dense,sdgp[mode=random|magnitude|rescaled]" --seeds 3 --set recipe.epochs=20

exit status: 0 all trials are done; 1 a trial failed (the report is still written); 2 wrong usage or missing data
"""


def run_parser() -> Parser:
    """Return the parser of `run`; what was not typed is `None`."""
    parser = Parser(
        usage="%(prog)s [run] [OPTION ...]",
        description="Train with several pruning methods and compare accuracy, FLOPs and time.\n\n"
        f"other verbs ({program_name()} VERB --help):\n"
        "  plan             predict time, FLOPs and memory of the trials from a few steps\n"
        "  list [KIND]      list methods, tasks, models, engines, callbacks, ...\n"
        "  describe NAME    show a method's parameters, a model's size, a task's recipes, ...\n"
        "  check METHOD     check that a method of your own keeps the rules for methods\n"
        "  report DIR       update results.csv and the report of an output folder\n"
        "  time DIR         measure training times again, by steps in turn with dense training\n"
        "  profile DIR      measure where the time of a step goes, by part, layer and product\n"
        "  tune LIST        choose parameters on validation images, with equal budgets\n"
        "  export DIR DEST  copy an output folder without models and logs, to share or commit it\n"
        "  merge A B -o DIR collect the trials of several folders in a new one\n"
        "  compare A B      show what differs between two folders: accuracy, time, FLOPs, settings, versions\n"
        "  reproduce NAME   repeat a table or figure of a paper and compare the numbers",
        epilog=EXAMPLES.format(program=program_name()),
    )
    add_run_options(parser)
    return parser


def add_run_options(parser: Parser, shown: bool = True) -> None:
    """Add the options of `run` to the parser of a verb that plans trials, and to its help if `shown`."""
    defaults = {item.name: item.default for item in dataclasses.fields(RunOptions)}
    for title, options in _OPTIONS.items():
        group = parser.add_argument_group(title)
        for name, (metavar, text, values) in options.items():
            more: dict[str, Any] = {"choices": values} if isinstance(values, tuple) else {"type": values}
            if metavar == "true|false":
                more |= {"nargs": "?", "const": "true"}
            if name in ("plugin", "epochs", "batch-size", "set"):
                more |= {"action": "append", "dest": "plugin" if name == "plugin" else "set"}
            shown_text = text.format(**defaults) if shown else argparse.SUPPRESS
            group.add_argument(f"--{name}", metavar=metavar, help=shown_text, **more)


def read_run_options(arguments: Sequence[str]) -> RunOptions:
    """Read the options of `run` and check them as far as possible without importing torch.

    Plugins are imported, because the options may contain names that they register.

    Raises:
        UsageError: An option is not valid.
    """
    return resolve_run_options(run_parser().read(arguments))


def resolve_run_options(namespace: argparse.Namespace) -> RunOptions:
    """Combine typed options, the file of `--config`, the environment and the defaults, and check them.

    Raises:
        UsageError: An option is not valid.
    """
    typed = _given(namespace)
    config = read_config(typed["config"]) if "config" in typed else {}
    values = config | typed
    overrides = _overrides(config) | _overrides(typed)
    plugins = tuple(read_path(path, "--plugin") for path in values.get("plugin", ()))
    for path in plugins:
        registry.load_plugin(path)
    for name, kind in (("methods", "method"), ("task", "task"), ("model", "model")):
        if name in values:
            read_names(values[name], kind, f"--{name}")
    if "log" in values:
        values["log"] = read_callbacks(values["log"])
    values |= {"overrides": overrides, "plugins": plugins, "data_root_typed": "data_root" in values}
    values.setdefault("data_root", read_data_root(default_data_root()))
    known = {item.name for item in dataclasses.fields(RunOptions)}
    fields = {_FIELDS.get(name, name): value for name, value in values.items()}
    options = RunOptions(**{name: value for name, value in fields.items() if name in known})
    if options.engine == "ray" and options.device.startswith("cuda:"):
        raise UsageError(f"--device {options.device}: Ray chooses the GPU of each trial; type --device cuda")
    if options.engine != "ray" and "ray_address" in values:
        raise UsageError(f"--ray-address {options.ray_address}: is used with --engine ray only")
    return options


def _given(namespace: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(namespace).items() if value is not None}


def _overrides(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the recipe that one source sets.

    Raises:
        UsageError: A field is set twice.
    """
    overrides: dict[str, Any] = {}
    for key, value in given.get("set", ()):
        if key in overrides:
            raise UsageError(f"recipe.{key} is given twice")
        overrides[key] = value
    return overrides


def read_config(text: str) -> dict[str, Any]:
    """Read the options in a TOML file as if they were typed.

    Keys may be written with `-` or `_`. Relative paths start at the working folder, as on the command line.

    Args:
        text: Path of the file.

    Raises:
        UsageError: The file cannot be read, a key is not an option, or a value is wrong.
    """
    read_path(text, "--config")
    content = read_bytes(Path(text).expanduser(), "--config")
    try:
        words = [word for key, value in tomllib.loads(content.decode()).items() for word in _words(key, value)]
        return _given(run_parser().read(words))
    except (ValueError, UsageError) as error:
        raise UsageError(f"--config {text}: {error}") from error


def _words(key: str, value: Any) -> list[str]:
    """Return what would be typed for a key of a file of options: `["--seeds=3,"]` for `seeds = [3]`."""
    name = key.replace("_", "-")
    if name == "set":
        fields = value.get("recipe") if isinstance(value, dict) and value.keys() == {"recipe"} else None
        if not isinstance(fields, dict):
            raise UsageError("set must be a table [set.recipe] with fields of the recipe")
        return [f"--set=recipe.{field}={show(item)}" for field, item in fields.items()]
    if name == "plugin" and isinstance(value, list):
        return [f"--plugin={path}" for path in value]
    if name in LISTS and isinstance(value, list):
        # The comma makes an array with one seed a list of seeds; a number alone is a count.
        value = ",".join(map(show, value)) + ("," if name == "seeds" else "")
    if name == "config":
        raise UsageError("a file names no other --config")
    if not isinstance(value, (str, int, float)):
        raise UsageError(f"{key} is {value!r}; allowed: text or a number")
    return [f"--{name}={show(value)}"]


def check_data_root(options: RunOptions, preset: str) -> None:
    """Check that the folder of a task whose data is the user's own was named, or is in the default data root.

    Args:
        options: Options of the command.
        preset: Preset of the command.

    Raises:
        UsageError: The task would take the default data root, which holds data sets of other tasks.
    """
    if options.data_root_typed or os.environ.get("PDT_DATA"):
        return
    for choice in read_choices(options.task, TaskChoice, "--task"):
        name, task = choice.name, choice.build(choice.parameters(preset, options.recipe))
        if task.needs_data_root(preset) and not (options.data_root / name).is_dir():
            raise UsageError(f"task {name} needs --data-root DIR, your folder of data; --preset smoke needs no data")
