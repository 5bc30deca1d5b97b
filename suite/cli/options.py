"""Options of the verbs: the parser, the arguments with their help texts, the file of `--config`, and their checks.

Each option is given at most once, without abbreviations, and a wrong one gets the nearest name. This module imports no
torch.
"""

from __future__ import annotations

import argparse
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from suite import registry
from suite.choices import TaskChoice
from suite.cli.parser import Parser, program_name
from suite.errors import UsageError, nearest
from suite.files import DATA_ROOT, default_data_root, read_bytes, read_path
from suite.parameters import convert
from suite.trials.callbacks.calls import read_callbacks
from suite.trials.folder.store import ONLY, Store
from suite.trials.folder.targets import read_targets
from suite.trials.planning import read_choices, read_names, read_override
from suite.trials.spec import read_device, read_dtype, read_preset, read_seeds

Count = Annotated[int, Ge(1), Le(1000)]
Positive = Annotated[float, Gt(0)]
_TYPES: dict[str, Any] = {
    "jobs": Count,
    "nproc-per-trial": Count,
    "timeout": Positive,
    "margin": Positive,
    "controls": bool,
    "skip-unfit": bool,
}


def read_config(path: Path, names: Sequence[str], lists: Sequence[str]) -> dict[str, Any]:
    """Return the options in a TOML file in the form of the command line: text, or lists of text for `plugin` and `set`.

    Keys may be written with `-` or `_`. Relative paths start at the working folder, as on the command line.

    Args:
        path: Path of the file.
        names: Options with one value.
        lists: Those of `names` that may be arrays.

    Raises:
        UsageError: The file cannot be read, a key is not an option, or a value has the wrong type.
    """
    try:
        content = tomllib.loads(read_bytes(path, "--config").decode())
    except ValueError as error:
        raise UsageError(f"--config {path}: {error}") from error
    known = (*names, "plugin", "set")
    options: dict[str, Any] = {}
    for key, value in content.items():
        name, where = key.replace("_", "-"), f"--config {path}: {key}"
        if name not in known:
            raise UsageError(f"--config {path}: no option is called '{key}'{nearest(name, known)}")
        if name == "set":
            options[name] = _assignments(value, where)
        elif name == "plugin":
            options[name] = [_text(item, where) for item in (value if isinstance(value, list) else [value])]
        elif name in lists and isinstance(value, list):
            # The comma makes an array with one seed a list of seeds; a number alone is a count.
            options[name] = ",".join(_text(item, where) for item in value) + ("," if name == "seeds" else "")
        else:
            options[name] = _text(value, where)
    return options


def _assignments(value: Any, where: str) -> list[str]:
    """Return `{recipe = {epochs = 3}}` as `["recipe.epochs=3"]`."""
    fields = value.get("recipe") if isinstance(value, dict) and value.keys() == {"recipe"} else None
    if not isinstance(fields, dict):
        raise UsageError(f"{where} must be a table [set.recipe] with fields of the recipe")
    return [
        f"recipe.{key}=({','.join(_text(part, where) for part in item)})"
        if isinstance(item, list)
        else f"recipe.{key}={_text(item, where)}"
        for key, item in fields.items()
    ]


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise UsageError(f"{where} is {value!r}; allowed: text or a number")


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
    "controls": "false",
    "margin": "0.5",
    "skip-unfit": "false",
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
    *("controls", "margin", "skip-unfit"),
)

EXAMPLES = """\
example:
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
    parser.lists = LISTS
    for title, options in _OPTIONS.items():
        group = parser.add_argument_group(title)
        for name, (metavar, text) in options.items():
            more: dict[str, Any] = {"action": "append"} if name in ("plugin", "set") else {}
            if name in ("controls", "skip-unfit"):
                more = {"nargs": "?", "const": "true"}
            group.add_argument(f"--{name}", metavar=metavar, help=text if shown else argparse.SUPPRESS, **more)


# Each fits on a line of 80 characters; pages of docs/ say more.
_OPTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "trials": {
        "methods": ("LIST", f"methods (default: {DEFAULTS['methods']})"),
        "task": ("LIST", f"tasks (default: {DEFAULTS['task']})"),
        "model": ("LIST", "models (default: the task's own)"),
        "preset": ("NAME", "smoke, quick or paper (default: quick, CUDA: paper)"),
        "seeds": ("N|LIST", "count, or list: 0,1 or 7, (default: 1, for paper 3)"),
        "controls": ("true|false", "add the dense and random trials that a verdict needs"),
        "margin": ("POINTS", f"difference in accuracy that matters (default: {DEFAULTS['margin']})"),
        "target": ("PERCENT", "accuracies to reach: 88,90 (default: dense - margin)"),
        "skip-unfit": ("true|false", "leave out methods that a network does not fit"),
        "plugin": ("FILE", "Python file with methods, tasks, ...; may be repeated"),
    },
    "recipe": {
        "recipe": ("NAME", "another recipe of the preset (see describe TASK)"),
        "epochs": ("N", "short for --set recipe.epochs=N"),
        "batch-size": ("N", "short for --set recipe.batch_size=N"),
        "set": ("recipe.KEY=VALUE", "set a field (see describe TASK); may be repeated"),
    },
    "execution": {
        "device": ("DEVICE", f"auto, cpu, cuda or cuda:N (default: {DEFAULTS['device']})"),
        "dtype": ("TYPE", "float32, bfloat16, float16 or auto (default: auto)"),
        "data-root": ("DIR", f"data sets (default: $PDT_DATA, or {DEFAULTS['data-root']})"),
        "out": ("DIR", "output folder (default: runs/TASK-HASH)"),
        "only": ("WHICH", f"run missing, failed or all trials (default: {DEFAULTS['only']})"),
        "jobs": ("N", f"trials at the same time (default: {DEFAULTS['jobs']})"),
        "nproc-per-trial": ("N", f"processes that train a model together (default: {DEFAULTS['nproc-per-trial']})"),
        "engine": ("NAME", f"{' or '.join(registry.names('engine'))} (default: {DEFAULTS['engine']})"),
        "ray-address": ("ADDRESS", "auto, local or HOST:PORT (default: auto)"),
        "log": ("LIST", f"callbacks: {', '.join(registry.names('callback'))}, or a plugin's (default: none)"),
        "timeout": ("SECONDS", "kill a trial that takes longer (default: no limit)"),
        "config": ("FILE", "TOML file with these options; typed ones come first"),
    },
}


@dataclass(frozen=True)
class RunOptions:
    """Options of `run`, checked without torch. Empty values were not typed and have no default.

    `data_root_typed` is true if the data root is neither the default nor that of the environment.
    """

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
    data_root_typed: bool
    out: Path | None
    only: str
    jobs: int
    processes: int
    engine: str
    ray_address: str
    timeout: float | None
    plugins: tuple[Path, ...]
    callbacks: tuple[str, ...]
    controls: bool
    skip_unfit: bool
    margin: float
    targets: tuple[float, ...]


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
    typed = {name: getattr(namespace, name.replace("-", "_")) for name in (*TEXTS, "plugin", "set")}
    typed = {name: value for name, value in typed.items() if value is not None}
    config = {}
    if namespace.config is not None:
        read_path(namespace.config, "--config")
        config = read_config(Path(namespace.config).expanduser(), TEXTS, LISTS)
    values = {**DEFAULTS, "data-root": default_data_root()}
    values |= {name: value for name, value in (config | typed).items() if name in TEXTS}
    overrides = _overrides(config) | _overrides(typed)

    data_root = read_path(values["data-root"], "--data-root")
    if next(path for path in (data_root, *data_root.parents) if path.exists()).is_file():
        raise UsageError(f"--data-root {values['data-root']}: is a file, not a folder")
    is_default = values["data-root"] == default_data_root()  # which a download makes
    if not is_default and not data_root.exists():
        raise UsageError(f"--data-root {values['data-root']}: there is no such folder; create it to download into it")
    out = read_path(values["out"], "--out") if "out" in values else None
    if out is not None:
        Store(out).check()
    plugins = tuple(read_path(path, "--plugin") for path in typed.get("plugin", config.get("plugin", ())))
    for path in plugins:
        registry.load_plugin(path)
    for name, kind in (("methods", "method"), ("task", "task"), ("model", "model")):
        if name in values:
            read_names(values[name], kind, f"--{name}")
    for name, known in (("only", ONLY), ("engine", registry.names("engine"))):
        if values[name] not in known:
            raise UsageError(f"--{name} '{values[name]}'{nearest(values[name], known)}")
    plain = {name: convert(values[name], kind, f"--{name}") for name, kind in _TYPES.items() if name in values}
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
        data_root_typed="data-root" in config | typed,
        out=out,
        only=values["only"],
        jobs=plain["jobs"],
        processes=plain["nproc-per-trial"],
        engine=values["engine"],
        ray_address=_ray_address(values),
        timeout=plain.get("timeout"),
        plugins=plugins,
        callbacks=read_callbacks(values["log"]) if "log" in values else (),
        controls=plain["controls"],
        skip_unfit=plain["skip-unfit"],
        margin=plain["margin"] / 100,
        targets=read_targets(values["target"]) if "target" in values else (),
    )


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


def _ray_address(values: Mapping[str, str]) -> str:
    """Return the address of the Ray cluster; empty with another engine.

    Raises:
        UsageError: The text is not an address, or the address or the device does not fit the engine.
    """
    address = values.get("ray-address", "")
    if values["engine"] != "ray":
        if address:
            raise UsageError(f"--ray-address {address}: is used with --engine ray only")
        return ""
    if values["device"].startswith("cuda:"):
        raise UsageError(f"--device {values['device']}: Ray chooses the GPU of each trial; type --device cuda")
    if address not in ("", "auto", "local") and not re.fullmatch(r"[^\s:/]+:[0-9]{1,5}", address):
        raise UsageError(f"--ray-address '{address}': expected auto, local or HOST:PORT")
    return address or "auto"


def _overrides(source: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the recipe that one source sets, by `--set` or by a short option.

    Raises:
        UsageError: A field is unknown, set twice, or set to a value that it cannot have.
    """
    typed = [
        (f"--{option}", f"recipe.{key}={source[option]}") for option, key in SHORTHANDS.items() if option in source
    ]
    overrides: dict[str, Any] = {}
    for option, assignment in [*typed, *(("--set", text) for text in source.get("set", ()))]:
        key, value = read_override(assignment, option)
        if key in overrides:
            raise UsageError(f"{option} {assignment}: recipe.{key} is given twice")
        overrides[key] = value
    return overrides
