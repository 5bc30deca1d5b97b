"""Files of tensors: checkpoints from which trials resume bit-exactly, and final models that load without their trial.

Both contain only tensors, numbers, strings, lists and dicts. `load` reads them with `weights_only=True`, so that no
code in them is executed. Writing is atomic: a killed process leaves either the old file or the new one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from suite import files, registry
from suite.choices import build_model
from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.surgery import apply_plan
from suite.errors import UsageError
from suite.reconfiguration import ReconfigPlan
from suite.task import Inputs


class _ErrorKeepingFile:
    """A file for torch to write to. It keeps the disk's error, which torch replaces by its own."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically.

    Raises:
        OSError: if it cannot be written, for example because the disk is full; the error names the file.
    """
    with files.replacing(path) as file:
        wrapped = _ErrorKeepingFile(file)
        try:
            torch.save(dict(state), cast("IO[bytes]", wrapped))
        except RuntimeError as error:
            if wrapped.error is not None:
                raise wrapped.error from error
            raise


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint without executing code from it.

    Raises:
        UsageError: if the file is missing, damaged or not a checkpoint.
    """
    try:
        # torch's reader does not verify the checksums in the archive.
        if reason := files.archive_damage(path):
            raise UsageError(f"{path}: {reason}")
        state = torch.load(path, map_location=device, weights_only=True)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except UsageError:
        raise
    except Exception as error:
        # The archive is intact, but the suite did not write it. Its content may make torch's reader raise anything.
        raise UsageError(f"{path}: is damaged, or not a file of tensors") from error
    if not isinstance(state, dict):
        raise UsageError(f"{path}: holds a {type(state).__name__}, not a checkpoint")
    return state


def save_model(
    path: Path,
    model: nn.Module,
    *,
    tensors: Mapping[str, Tensor] | None = None,
    name: str,
    num_classes: int | None,
    input_shape: tuple[int, ...],
    reconfigurations: list[ReconfigPlan],
    plugin: str = "",
) -> None:
    """Write a final model: its tensors, and its architecture as plain data.

    Args:
        path: Path of `model.pt`.
        model: The bare model, with empty plans.
        tensors: The state that evaluation uses; `None`: the model's own state.
        name: The model and its parameters as on the command line, for example `resnet9[width=0.25]`; empty for a model
            that only its own program can build.
        num_classes: Number of classes that the model was built for.
        input_shape: (C, H, W) that the model was built for.
        reconfigurations: The plans that were carried out on it, in order; `load_model` replays them.
        plugin: Name of the file of the plugin that defines the model; empty if none does.

    Raises:
        OSError: as `save` does.
    """
    architecture: dict[str, Any] = {
        "model": name,
        "num_classes": None if num_classes is None else int(num_classes),
        "input_shape": [int(size) for size in input_shape],
        "reconfigurations": [plan.to_json() for plan in reconfigurations],
    }
    if plugin:
        architecture["plugin"] = plugin
    tensors = {key: tensor.detach().cpu() for key, tensor in (tensors or model.state_dict()).items()}
    save(path, {"architecture": architecture, "tensors": tensors, "sha256": _checksum(tensors)})


def load_model(path: str | Path, model: nn.Module | None = None) -> nn.Module:
    """Open a final model without its training: build it, replay its reconfigurations, and load its tensors.

    Args:
        path: Path of a `model.pt`, or of what `OwnLoop.save_model` wrote. For a model of a plugin, call
            `suite.registry.load_plugin` first.
        model: The newly built model, which is changed. The file of a user's own training loop needs it, because it does
            not say how to build the model. `None`: build the model that the file names.

    Returns:
        The model in evaluation mode, with torch's own layers, on the CPU or on the device of the given model.

    Raises:
        UsageError: if the file is missing, damaged or not a model of this suite, if its model is not registered (the
            message then names the file of the plugin), or if its tensors do not fit the given model.
    """
    state = _read_model(Path(path))
    # Building the model draws weights that are then overwritten. The caller's random state must not change.
    generator_state = torch.get_rng_state()
    try:
        return _rebuilt(state["architecture"], state["tensors"], model)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except Exception as error:
        # The checksum is right: another program, or another version of the model, wrote the file.
        reason = (str(error).splitlines() or [""])[0]
        which = "the model that it names" if model is None else "the given model"
        raise UsageError(f"{path}: its tensors do not fit {which} ({reason})") from error
    finally:
        torch.set_rng_state(generator_state)


def _check_registered(architecture: Mapping[str, Any]) -> None:
    if not architecture["model"]:
        raise UsageError(
            "was saved by a training loop that built its own model; build it again and give it: load_model(path, model)"
        )
    name, plugin = architecture["model"].partition("[")[0], architecture.get("plugin")
    if registry.find("model", name) is None:
        # A stranger may have written the file: quote its text, and let only the user's own call run the plugin.
        whose = "if a plugin defines it"
        if isinstance(plugin, str) and plugin:
            whose = f"the plugin {Path(plugin).name!r} defines it"
        raise UsageError(f"no model is called '{name}' here; {whose}: call suite.registry.load_plugin(FILE) before")


def _rebuilt(architecture: Mapping[str, Any], tensors: Mapping[str, Tensor], model: nn.Module | None) -> nn.Module:
    """Return the model with its reconfigurations carried out and its tensors loaded."""
    input_shape = architecture["input_shape"]
    if model is None:
        _check_registered(architecture)
        model = build_model(architecture["model"], tuple(input_shape), architecture["num_classes"])
    spaces = find_index_spaces(model, tuple(input_shape))
    for plan in architecture["reconfigurations"]:
        apply_plan(model, ReconfigPlan.from_json(plan), spaces, None)
    model.load_state_dict(tensors, strict=True)
    return model.eval()


def read_reconfigurations(path: Path) -> list[ReconfigPlan]:
    """Return the plans that were carried out on a final model, in order.

    Raises:
        UsageError: as `load_model` does.
    """
    try:
        return [ReconfigPlan.from_json(plan) for plan in _read_model(path)["architecture"]["reconfigurations"]]
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise UsageError(f"{path}: is damaged: its reconfigurations cannot be read ({error})") from error


def _read_model(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    state = load(path)
    architecture, tensors = state.get("architecture"), state.get("tensors")
    if not (isinstance(architecture, dict) and isinstance(tensors, dict)):
        raise UsageError(f"{path}: is not a model of this suite (a trial's model is in model.pt)")
    try:
        whole = _checksum(tensors) == state.get("sha256")
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path}: is damaged: its tensors are not in the suite's format") from error
    if not whole:
        raise UsageError(f"{path}: is damaged: its tensors do not match its checksum")
    return state


def weights_checksum(model: nn.Module) -> str:
    """Return the SHA-256, in hex, of a model's parameters, without those that the first forward initialises."""
    parameters = model.named_parameters()
    return _checksum({name: tensor.detach().cpu() for name, tensor in parameters if not is_lazy(tensor)})


EQUAL_STARTS = (
    "all seeds begin with the same weights, because the network seeds torch itself or loads its weights; intervals "
    "over seeds then miss a part of the spread"
)


def starts_alike(model: str, inputs: Inputs) -> bool:
    """Return whether a model has the same initial weights for two seeds of torch's generator.

    Args:
        model: The model, written as on the command line.
        inputs: What it is built for.
    """
    checksums = set()
    with torch.random.fork_rng(devices=()):
        for seed in (0, 1):
            torch.manual_seed(seed)
            checksums.add(weights_checksum(build_model(model, *inputs)))
    return len(checksums) == 1


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256, in hex, of names, types, shapes and values: torch's reader does not notice a flipped bit."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
