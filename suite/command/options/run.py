"""Options of `run`, from the command line, a TOML file and the environment, checked without importing torch."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite import registry
from suite.command.config import read_config, read_count, read_flag, read_number
from suite.command.options.arguments import DEFAULTS, LISTS, SHORTHANDS, TEXTS, run_parser
from suite.errors import UsageError, nearest
from suite.files import default_data_root, read_path
from suite.runs.callbacks.calls import read_callbacks
from suite.runs.folder.store import ONLY, Store
from suite.runs.folder.targets import read_targets
from suite.runs.planning import read_names, read_override
from suite.runs.spec import read_device, read_dtype, read_preset, read_seeds


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
    margin: float
    targets: tuple[float, ...]


def read_run_options(arguments: Sequence[str]) -> RunOptions:
    """Read the options of `run` and check them as far as possible without importing torch.

    Plugins are imported, since the options may contain names that they register.

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
        data_root_typed="data-root" in config | typed,
        out=out,
        only=values["only"],
        jobs=read_count("jobs", values["jobs"]),
        processes=read_count("nproc-per-trial", values["nproc-per-trial"]),
        engine=values["engine"],
        ray_address=_ray_address(values),
        timeout=read_number("timeout", values["timeout"], "seconds") if "timeout" in values else None,
        plugins=plugins,
        callbacks=read_callbacks(values["log"]) if "log" in values else (),
        controls=read_flag("controls", values.get("controls", "false")),
        margin=read_number("margin", values["margin"], "percentage points") / 100,
        targets=read_targets(values["target"]) if "target" in values else (),
    )


def check_data_root(options: RunOptions, preset: str) -> None:
    """Check that the folder of a task whose data is the user's own was named, or is in the default data root.

    Args:
        options: Options of the command.
        preset: Preset of the command.

    Raises:
        UsageError: The default data root, which holds data sets of other tasks, would be taken for the user's folder.
    """
    if options.data_root_typed or os.environ.get("PDT_DATA"):
        return
    for name in (request.name for request in read_names(options.task, "task", "--task")):
        if registry.get("task", name)().needs_data_root(preset) and not (options.data_root / name).is_dir():
            raise UsageError(f"task {name} needs --data-root DIR, your folder of data; --preset smoke needs no data")


def _ray_address(values: Mapping[str, str]) -> str:
    """Return the address of the Ray cluster; empty with another engine.

    Raises:
        UsageError: It is not an address, or it, or the device, does not fit the engine.
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
    found: dict[str, Any] = {}
    for option, assignment in [*typed, *(("--set", text) for text in source.get("set", ()))]:
        key, value = read_override(assignment, option)
        if key in found:
            raise UsageError(f"{option} {assignment}: recipe.{key} is given twice")
        found[key] = value
    return found
