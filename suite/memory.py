"""Peak memory of a training step: the allocator's maximum on CUDA, counted bytes of tensors on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class SavedTensors:
    """Counts the bytes that autograd keeps for backward, each storage once, without parameters and buffers."""

    def __init__(self, model: nn.Module) -> None:
        self.bytes = 0
        owned = [*model.parameters(), *model.buffers()]
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in owned}
        self._held: list[Tensor] = []

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is saved inside."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            yield
        # Held so that no storage is freed and its address counted as another's; no longer needed now.
        self._held.clear()

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self._held.append(tensor.detach())
            self.bytes += storage.nbytes()
        return tensor


def held_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of parameters, buffers, gradients and optimizer state."""
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    tensors += [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
