"""The state of a training between epochs, and the largest memory of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from suite.cost.memory import SavedTensors, held_bytes
from suite.recipe import Recipe
from suite.training.optimizer_state import SGD, AdamW, tensors_per_parameter

Record = dict[str, Any]


@dataclass
class Progress:
    """State of the trainer between epochs; part of the checkpoint."""

    first_epoch: int = 0  # epochs that were done when the schedule began; not 0 after a restart
    lr_scale: float = 1.0
    samples: int = 0
    peak_memory_bytes: int = 0
    step_memory_bytes: int = 0  # with the network and batch size that trained last
    memory_is_counted: bool = False  # on the CPU: whether it was counted for the current network
    best_accuracy: float = 0.0
    finished: bool = False
    last_record: Record = field(default_factory=dict)

    def note_memory(self, step_bytes: int) -> None:
        """Keep the memory of a step, in bytes, and the largest one of all steps."""
        self.step_memory_bytes = step_bytes
        self.peak_memory_bytes = max(self.peak_memory_bytes, step_bytes)

    def note_counted_memory(
        self, saved: SavedTensors, model: nn.Module, optimizer: SGD | AdamW, recipe: Recipe, average_bytes: int
    ) -> None:
        """Count the memory of a step on the CPU, once per architecture.

        Args:
            saved: Tensors that were kept for the backward.
            model, optimizer: The model with its gradients, and its optimizer.
            recipe: The recipe, for the optimizer's state before the first step.
            average_bytes: Bytes of the average of the weights; 0 without one.
        """
        held = saved.bytes + held_bytes(model, optimizer) + average_bytes
        if not optimizer.state:  # before the first step, the momentum does not exist yet
            size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
            held += tensors_per_parameter(recipe) * size
        self.note_memory(held)
        self.memory_is_counted = True
