"""What hooks return: reconfigurations and `SKIP_STEP`; and how a method then updates its own tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torch import Tensor


@dataclass(frozen=True)
class ReconfigPlan:
    """A decision to change the network. Plain data: the checkpoint has it as JSON, and a resumed trial replays it.

    Attributes:
        kept: For each index space that shrinks, the *original* indices of the remaining channels
            (`IndexSpace.original`), ascending.
        removed_branches: Names of the residual branches to remove. Each leaves the constant that its last normalisation
            still emits, so that the model's outputs do not change.
        gated: Names of the index spaces whose layers are cut individually from now on (gating). `kept` may name the
            spaces that gating creates, `LAYER:in` and `LAYER:out`.
        frozen: Names of parameters that are not trained from now on (`Method.freeze`).
        batch_size: The global batch size from now on; `None` leaves it unchanged.
        lr_scale: Factor on the recipe's learning rate, not on the present one; `None` leaves it unchanged.
        restart: Whether to clear the optimizer state and start schedule and epochs again.
    """

    kept: Mapping[str, list[int]] = field(default_factory=dict)
    removed_branches: tuple[str, ...] = ()
    gated: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    batch_size: int | None = None
    lr_scale: float | None = None
    restart: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the plan as data for `json`."""
        return dataclasses.asdict(self) | {
            "kept": {name: [int(index) for index in indices] for name, indices in self.kept.items()},
            "removed_branches": list(self.removed_branches),
            "gated": list(self.gated),
            "frozen": list(self.frozen),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReconfigPlan:
        """Return the plan that `to_json` wrote."""
        lists = {name: tuple(data[name]) for name in ("removed_branches", "gated", "frozen")}
        return cls(**{**data, **lists})


@dataclass(frozen=True)
class OtherTrial:
    """Result of a trial that this trial depends on (`Method.depends_on`).

    Attributes:
        reconfigurations: Plans that the trial carried out on its network, in order.
        inference_flops: FLOPs of one image's inference by its final network.
        model_file: Path of its `model.pt`, which `suite.checkpoint.load_model` reads; `None` if there is no file.
        epochs: For each of `reconfigurations`, the number of epochs finished before it; 0 before training.
    """

    reconfigurations: tuple[ReconfigPlan, ...]
    inference_flops: float
    model_file: Path | None = None
    epochs: tuple[int, ...] = ()


class IndexMap:
    """What a reconfiguration did to the tensors of a model, by name. With it, a method cuts its own tensors.

    Args:
        kept: For each parameter or buffer that was cut, the remaining positions by axis.
        removed: Names of the modules that were removed.
    """

    def __init__(self, kept: Mapping[str, Mapping[int, Tensor]], removed: frozenset[str]) -> None:
        self._kept = kept
        self._removed = removed

    def exists(self, name: str) -> bool:
        """Return whether the parameter, buffer or layer `name` is still in the model."""
        return not any(name == removed or name.startswith(removed + ".") for removed in self._removed)

    def __call__(self, name: str, tensor: Tensor) -> Tensor:
        """Return `tensor` cut like the parameter or buffer `name`, whose former shape it has."""
        for axis, indices in self._kept.get(name, {}).items():
            tensor = tensor.index_select(axis, indices.to(tensor.device))
        return tensor


class SkipStep:
    """The type of `SKIP_STEP`."""

    def __repr__(self) -> str:
        return "SKIP_STEP"


SKIP_STEP: Final = SkipStep()
"""Return value of `before_optimizer_step` that skips the optimizer step. Everything else runs as usual."""
