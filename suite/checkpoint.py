"""Files of tensors: a checkpoint to resume from bit-exactly, and a final model that loads without its run.

Both hold tensors, numbers, strings, lists and dicts alone, and are read with `weights_only=True`: nothing in them is
executed. They are written beside their place and then moved there, so that a killed process leaves the old file or
the new one.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from suite import files
from suite.errors import UsageError
from suite.method import ReconfigPlan
from suite.parameters import build_model
from suite.surgery import apply_plan, find_index_spaces

MODEL_FORMAT = 1


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically."""
    with files.replacing(path) as file:
        torch.save(dict(state), file)


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint without running code from it.

    Raises:
        UsageError: if the file is no checkpoint or is damaged.
    """
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except (
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        # Whatever torch's reader trips over in bytes that it did not write.
        raise UsageError(f"{path}: is damaged, or no file of tensors") from error
    if not isinstance(state, dict):
        raise UsageError(f"{path}: holds a {type(state).__name__}, not a checkpoint")
    return state


def save_model(
    path: Path,
    model: nn.Module,
    *,
    name: str,
    num_classes: int,
    input_shape: tuple[int, int, int],
    reconfigurations: list[ReconfigPlan],
) -> None:
    """Write the final model: its tensors, and the architecture as plain data.

    Args:
        path: `model.pt`.
        model: a bare model with empty plans.
        name: what it was built as, `resnet9[width=0.25]`.
        num_classes, input_shape: what it was built for.
        reconfigurations: the plans carried out on it, in order; replayed on loading.
    """
    architecture = {
        "format": MODEL_FORMAT,
        "model": name,
        "num_classes": num_classes,
        "input_shape": list(input_shape),
        "reconfigurations": [plan.to_json() for plan in reconfigurations],
    }
    tensors = {key: tensor.detach().cpu() for key, tensor in model.state_dict().items()}
    save(path, {"architecture": architecture, "tensors": tensors, "sha256": _checksum(tensors)})


def load_model(path: str | Path) -> nn.Module:
    """Open a trial's final model, without the trial: build it, replay what pruning took out, load the tensors.

    Args:
        path: a `model.pt`. A model from a plugin needs `suite.registry.load_plugin` first.

    Returns:
        The model on the CPU, in evaluation mode, made of torch's own layers.

    Raises:
        UsageError: if the file is missing, damaged or no model of this suite, or its model is not registered.
    """
    state = _read_model(Path(path))
    architecture = state["architecture"]
    input_shape = tuple(architecture["input_shape"])
    # Building draws weights, which are overwritten; the caller's own draws must not move by it.
    generator_state = torch.get_rng_state()
    model = build_model(architecture["model"], input_shape, architecture["num_classes"])
    torch.set_rng_state(generator_state)
    spaces = find_index_spaces(model, input_shape)
    for plan in architecture["reconfigurations"]:
        apply_plan(model, ReconfigPlan.from_json(plan), spaces, None)
    model.load_state_dict(state["tensors"], strict=True)
    return model.eval()


def read_reconfigurations(path: Path) -> list[ReconfigPlan]:
    """The plans that were carried out on a final model, in order.

    Raises:
        UsageError: as of `load_model`.
    """
    return [ReconfigPlan.from_json(plan) for plan in _read_model(path)["architecture"]["reconfigurations"]]


def _read_model(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    state = load(path)
    if not {"architecture", "tensors", "sha256"} <= set(state) or "format" not in state["architecture"]:
        raise UsageError(f"{path}: holds no model of this suite (a trial's is called model.pt)")
    if state["architecture"]["format"] != MODEL_FORMAT:
        raise UsageError(f"{path}: has format {state['architecture']['format']}; this version reads {MODEL_FORMAT}")
    if _checksum(state["tensors"]) != state["sha256"]:
        raise UsageError(f"{path}: is damaged: its tensors do not have the checksum that stands beside them")
    return state


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256, in hex, of names, types, shapes and values: torch's own reader does not notice a flipped bit."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
