# ruff: noqa: RUF009  a field of `RunOptions` is declared by a function, as those of dataclasses are
"""The parser of all verbs, and the options of `run`, which other verbs share: declared once, typed or in a TOML file.

Each option is given at most once, without abbreviations, and a wrong one gets the nearest name. This module imports no
torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

from annotated_types import Ge, Gt, Le

from suite import registry
from suite.errors import UsageError, nearest
from suite.files import DATA_ROOT, default_data_root, read_bytes, read_path
from suite.parameters import allowed, convert, show
from suite.trials.callbacks.calls import read_callbacks
from suite.trials.folder.targets import read_targets
from suite.trials.planning import read_names, read_override
from suite.trials.spec import DTYPES, PRESETS, read_device, read_seeds

BY_COMMAS = "lists are separated by commas, without spaces"


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

    def add_plugins(
        self, text: str = "Python file that registers it", read: Callable[[str], Any] | None = None
    ) -> None:
        """Add `--plugin`, which may be repeated, and whose files are imported unless `read` does something else."""
        read = read or registry.load_plugin
        self.add_argument("--plugin", metavar="FILE", action="append", default=[], help=text, type=read)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all arguments.

        Raises:
            UsageError: An argument is unknown, or an option is given more than once.
        """
        names = [text.partition("=")[0] for text in arguments if not text.endswith("=--")]
        if len(names) < len(arguments):  # argparse would store an empty list
            raise UsageError("an option ends with '=--': expected a value")
        for action in self._actions:  # argparse alone would keep the last value
            typed = [name for name in names if name in action.option_strings]
            if len(typed) > 1 and action.dest not in ("plugin", "overrides"):
                hint = f"; {BY_COMMAS}" if "LIST" in str(action.metavar) else ""
                raise UsageError(f"{typed[-1]} is given twice{hint}")
        namespace, unknown = self.parse_known_args(arguments)
        if unknown:
            name = unknown[0].partition("=")[0]
            if not name.startswith("-"):
                hint = "repeat --set for each field" if name.startswith("recipe.") else BY_COMMAS
                raise UsageError(f"unexpected argument '{name}'; {hint}")
            # Names are compared without dashes, which would make any two options similar.
            known = [text[2:] for text in self._option_string_actions if text.startswith("--")]
            raise UsageError(f"no option is called '{name}'{nearest(name.lstrip('-'), known, '--')}")
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


_POSITIVE, _COUNT = of_type(Annotated[float, Gt(0)]), whole(1, 1000)


def read_data_root(text: str) -> Path:
    """Return the folder of the data sets, which exists unless it is the default.

    Raises:
        UsageError: It does not exist, or is not a folder.
    """
    path = read_path(text, "--data-root")
    if not path.is_dir() and (path.exists() or text != default_data_root()):  # a download creates the default
        reason = (
            "is a file, not a folder" if path.exists() else "there is no such folder; create it to download into it"
        )
        raise UsageError(f"--data-root {text}: {reason}")
    return path


def _out(text: str) -> Path:
    from suite.trials.folder.store import Store  # not needed to list

    path = read_path(text, "--out")
    Store(path).check()
    return path


def _plugin(text: str) -> Path:
    registry.load_plugin(text)
    return read_path(text, "--plugin")


def _ray_address(text: str) -> str:
    if not re.fullmatch(r"auto|local|[^\s:/]+:[0-9]{1,5}", text):
        raise UsageError(f"--ray-address '{text}': expected auto, local or HOST:PORT")
    return text


def _option(metavar: str, text: str, default: Any = "", read: Callable[[str], Any] | Sequence[str] = str) -> Any:
    """Return a field of `RunOptions` that is typed as the option of its name.

    Args:
        metavar: The word for the value in the help.
        text: The help, which fits on a line of 80 characters; `docs/` says more. It may contain the default as `{}`.
        default: Value if the option is not typed.
        read: Type or choices of what is typed.
    """
    keywords: dict[str, Any] = {"type": read} if callable(read) else {"choices": read}
    if metavar == "true|false":
        keywords |= {"nargs": "?", "const": "true"}
    if metavar == "FILE":
        keywords["action"] = "append"
    return dataclasses.field(default=default, metadata={"metavar": metavar, "help": text.format(default), **keywords})


_ENGINES, _CALLBACKS = registry.names("engine"), registry.names("callback")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of `run` with their defaults, checked without torch. Empty values were not typed.

    Attributes:
        overrides: Fields of the recipe with values of their types.
        data_root_typed: Whether the data root is neither the default nor that of the environment.
    """

    methods: str = _option("LIST", "methods (default: {})", "dense,sdgp,prunetrain")
    task: str = _option("LIST", "tasks (default: {})", "cifar10")
    model: str = _option("LIST", "models (default: the task's own)")
    preset: str = _option("NAME", "smoke, quick or paper (default: quick, CUDA: paper)", "", PRESETS)
    seeds: tuple[int, ...] = _option("N|LIST", "count, or list: 0,1 or 7, (default: 1, for paper 3)", (), read_seeds)
    controls: bool = _option("true|false", "add the dense and random trials that a verdict needs", False, of_type(bool))
    margin: float = _option("POINTS", "difference in accuracy that matters (default: {})", 0.5, _POSITIVE)
    target: tuple[float, ...] = _option(
        "PERCENT", "accuracies to reach: 88,90 (default: dense - margin)", (), read_targets
    )
    exploratory: str = _option("REASON", "say first in the report that its answers are exploratory, and why")
    skip_unfit: bool = _option("true|false", "leave out methods that a network does not fit", False, of_type(bool))
    plugin: tuple[Path, ...] = _option("FILE", "Python file with methods, tasks, ...; may be repeated", (), _plugin)
    recipe: str = _option("NAME", "another recipe of the preset (see describe TASK)")
    device: str = _option("DEVICE", "auto, cpu, cuda or cuda:N (default: {})", "auto", read_device)
    dtype: str = _option("TYPE", "float32, bfloat16, float16 or auto (default: {})", "auto", DTYPES)
    data_root: Path = _option("DIR", f"data sets (default: $PDT_DATA, or {DATA_ROOT})", Path(), read_data_root)
    out: Path | None = _option("DIR", "output folder (default: runs/TASK-HASH)", None, _out)
    only: str = _option(
        "WHICH", "run missing, failed or all trials (default: {})", "missing", ("missing", "failed", "all")
    )
    jobs: int = _option("N", "trials at the same time (default: {})", 1, _COUNT)
    nproc_per_trial: int = _option("N", "processes that train a model together (default: {})", 1, _COUNT)
    engine: str = _option("NAME", f"{' or '.join(_ENGINES)} (default: {{}})", "local", _ENGINES)
    ray_address: str = _option("ADDRESS", "auto, local or HOST:PORT (default: {})", "auto", _ray_address)
    log: tuple[str, ...] = _option("LIST", f"callbacks: {', '.join(_CALLBACKS)}, or a plugin's (default: none)", ())
    timeout: float | None = _option("SECONDS", "kill a trial that takes longer (default: no limit)", None, _POSITIVE)
    overrides: Mapping[str, Any]
    data_root_typed: bool


_GROUPS = {"methods": "trials", "recipe": "recipe", "device": "execution"}
"""Titles of the help by the first option below them."""

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
    groups: dict[str, Any] = {}

    def add(name: str, title: str, **keywords: Any) -> None:
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        if not shown:
            keywords["help"] = argparse.SUPPRESS
        groups[title].add_argument(f"--{name.replace('_', '-')}", default=None, **keywords)

    title = ""
    for item in dataclasses.fields(RunOptions):
        title = _GROUPS.get(item.name, title)
        if item.metadata:
            add(item.name, title, **item.metadata)
    of_recipe: dict[str, Any] = {"title": "recipe", "action": "append", "dest": "overrides"}
    for name in ("epochs", "batch_size"):
        read = functools.partial(_field, name)
        add(name, metavar="N", help=f"short for --set recipe.{name}=N", type=read, **of_recipe)
    about = "set a field (see describe TASK); may be repeated"
    add("set", metavar="recipe.KEY=VALUE", help=about, type=read_override, **of_recipe)
    add("config", title, metavar="FILE", help="TOML file with these options; typed ones come first")


def _field(name: str, text: str) -> tuple[str, Any]:
    return read_override(f"recipe.{name}={text}", f"--{name.replace('_', '-')}")


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
    for name, kind in (("methods", "method"), ("task", "task"), ("model", "model")):
        if name in values:
            read_names(values[name], kind, f"--{name}")
    if "log" in values:
        values["log"] = read_callbacks(values["log"])
    values |= {"overrides": _overrides(config) | _overrides(typed), "data_root_typed": "data_root" in values}
    values.setdefault("data_root", read_data_root(default_data_root()))
    known = [item.name for item in dataclasses.fields(RunOptions) if item.name in values]
    options = RunOptions(**{name: values[name] for name in known})
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
    for key, value in given.get("overrides", ()):
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
    content = read_bytes(read_path(text, "--config"), "--config")
    try:
        words = [word for key, value in tomllib.loads(content.decode()).items() for word in _words(key, value)]
        return _given(run_parser().read(words))
    except (ValueError, UsageError, RecursionError) as error:  # a table may be nested thousands of times
        raise UsageError(f"--config {text}: {error}") from error


def _words(key: str, value: Any) -> list[str]:
    """Return what would be typed for a key of a file of options: `["--seeds=3,"]` for `seeds = [3]`."""
    name = key.replace("_", "-")
    if name == "config":
        raise UsageError("a file names no other --config")
    if name == "set" and isinstance(value, dict):
        if value.keys() != {"recipe"} or not isinstance(value["recipe"], dict):
            raise UsageError("set must be a table [set.recipe] with fields of the recipe")
        return [f"--set=recipe.{field}={show(item)}" for field, item in value["recipe"].items()]
    if name == "plugin" and isinstance(value, list):
        return [f"--plugin={path}" for path in value]
    if isinstance(value, list):
        # The comma makes an array with one seed a list of seeds; a number alone is a count.
        value = ",".join(map(show, value)) + ("," if name == "seeds" else "")
    return [f"--{name}={show(value)}"]
