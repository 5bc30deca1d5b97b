"""Files of tensors: a checkpoint to resume from bit-exactly, and a final model that loads without its run.

Both hold tensors, numbers, strings, lists and dicts alone, and are read with `weights_only=True`: nothing in them is
executed. They are written beside their place and then moved there, so that a killed process leaves the old file or
the new one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor, nn

from suite import files
from suite.choices import build_model
from suite.errors import UsageError
from suite.method import ReconfigPlan
from suite.network.channels.spaces import find_index_spaces
from suite.network.channels.surgery import apply_plan
from suite.runs.folder.records import archive_damage

MODEL_FORMAT = 1
LARGEST_SIZE = 2**20  # of an image, in pixels along a side, and of the classes; more was not written by this suite


class _Remembering:
    """A file for torch to write to, which remembers the error of the disk; torch replaces it by one of its own."""

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
        OSError: if it cannot be written, because the disk is full, for instance; it names the file.
    """
    with files.replacing(path) as file:
        remembering = _Remembering(file)
        try:
            torch.save(dict(state), cast("IO[bytes]", remembering))
        except RuntimeError as error:
            if remembering.error is not None:
                raise remembering.error from error
            raise


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint without running code from it.

    Raises:
        UsageError: if the file is no checkpoint or is damaged.
    """
    try:
        # torch's reader does not look at the checksums in the archive.
        if reason := archive_damage(path):
            raise UsageError(f"{path}: {reason}")
        state = torch.load(path, map_location=device, weights_only=True)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except UsageError:
        raise
    except Exception as error:
        # The archive is whole, but not one that this suite wrote; what its content leads torch's reader to is open.
        raise UsageError(f"{path}: is damaged, or not a file of tensors") from error
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
    # Building draws weights, which are overwritten; the caller's own draws must not move by it.
    generator_state = torch.get_rng_state()
    try:
        return _rebuilt(state["architecture"], state["tensors"])
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except Exception as error:
        # Its checksum holds, so that it was written like this: for another version of the model, or by another program.
        reason = (str(error).splitlines() or [""])[0]
        raise UsageError(f"{path}: its tensors do not fit the network that it names ({reason})") from error
    finally:
        torch.set_rng_state(generator_state)


def _rebuilt(architecture: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """The network with everything taken out that was, and its tensors."""
    input_shape = architecture["input_shape"]
    model = build_model(architecture["model"], tuple(input_shape), architecture["num_classes"])
    spaces = find_index_spaces(model, tuple(input_shape))
    for plan in architecture["reconfigurations"]:
        apply_plan(model, ReconfigPlan.from_json(plan), spaces, None)
    model.load_state_dict(tensors, strict=True)
    return model.eval()


def read_reconfigurations(path: Path) -> list[ReconfigPlan]:
    """The plans that were carried out on a final model, in order.

    Raises:
        UsageError: as of `load_model`.
    """
    try:
        return [ReconfigPlan.from_json(plan) for plan in _read_model(path)["architecture"]["reconfigurations"]]
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise UsageError(f"{path}: what was taken out of its network is damaged ({error})") from error


def _read_model(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    state = load(path)
    architecture, tensors = state.get("architecture"), state.get("tensors")
    if not (isinstance(architecture, dict) and isinstance(tensors, dict) and "format" in architecture):
        raise UsageError(f"{path}: holds no model of this suite (a trial's is called model.pt)")
    if architecture["format"] != MODEL_FORMAT:
        raise UsageError(f"{path}: has format {architecture['format']}; this version reads {MODEL_FORMAT}")
    try:
        whole = _checksum(tensors) == state.get("sha256")
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path}: is damaged: it does not hold tensors as this suite writes them") from error
    if not whole:
        raise UsageError(f"{path}: is damaged: its tensors do not have the checksum in it")
    shape = architecture.get("input_shape")
    if not (
        isinstance(architecture.get("model"), str)
        and isinstance(architecture.get("reconfigurations"), list)
        and isinstance(shape, list)
        and len(shape) == 3
        and all(
            isinstance(size, int) and 0 < size <= LARGEST_SIZE for size in (*shape, architecture.get("num_classes"))
        )
    ):
        raise UsageError(f"{path}: is damaged: it does not say which network its tensors belong to")
    return state


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256, in hex, of names, types, shapes and values: torch's own reader does not notice a flipped bit."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
