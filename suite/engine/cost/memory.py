"""Memory of a training step: the allocator's maximum on CUDA, the counted bytes of tensors on the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.engine.network.forward_pass import blank_images, first_parameter


class SavedTensors:
    """Counts the bytes that autograd keeps for the backward: each storage once, except parameters and buffers."""

    def __init__(self, model: nn.Module) -> None:
        self.bytes = 0
        owned = [*model.parameters(), *model.buffers()]
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in owned}
        self._held: list[Tensor] = []

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the tensors that are saved inside."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            yield
        # Freed memory could become another storage with the same address, so the tensors live until here.
        self._held.clear()

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self._held.append(tensor.detach())
            self.bytes += storage.nbytes()
        return tensor


@dataclass(frozen=True)
class StepMemory:
    """Bytes that forward and backward of a training step take: a constant part, and a part per image."""

    constant: float
    each_image: float

    def of(self, images: int) -> float:
        """Return the bytes for this number of images at once."""
        return self.constant + self.each_image * images


def measure_step(model: nn.Module, input_shape: tuple[int, int, int], dtype: torch.dtype, images: int) -> StepMemory:
    """Measure the memory of a training step, without parameters, gradients and optimizer state, by running the step.

    Two batch sizes are measured, because some tensors (autocast's copies of the weights) exist once for any batch. On
    the CPU, the tensors that autograd keeps for the backward are counted, as for a trial's peak memory. On CUDA, the
    allocator's maximum over forward and backward is reset and read.

    Args:
        model: A copy of the model in its memory format of training. Its statistics and gradients change.
        input_shape: (C, H, W) of one image.
        dtype: `torch.float32`, or the autocast type.
        images: Approximate number of images in a step. The CPU uses fewer, because its count is exact.
    """
    model.train()
    if first_parameter(model).device.type == "cuda":
        few, many = max(1, images // 2), max(2, images)
        _peak(model, few, input_shape, dtype)  # lets libraries allocate their memory
        less, more = (_peak(model, count, input_shape, dtype) for count in (few, many))
    else:
        few, many = COUNTED_IMAGES, 2 * COUNTED_IMAGES
        less, more = (_kept(model, count, input_shape, dtype) for count in (few, many))
    each = max(0.0, (more - less) / (many - few))
    return StepMemory(more - each * many, each)


COUNTED_IMAGES = 8


def _kept(model: nn.Module, images: int, input_shape: tuple[int, int, int], dtype: torch.dtype) -> int:
    saved = SavedTensors(model)
    with saved.counting():
        _loss(model, images, input_shape, dtype)
    return saved.bytes


def _peak(model: nn.Module, images: int, input_shape: tuple[int, int, int], dtype: torch.dtype) -> int:
    device = first_parameter(model).device
    model.zero_grad(set_to_none=True)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    _loss(model, images, input_shape, dtype).backward()
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def _loss(model: nn.Module, images: int, input_shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    device = first_parameter(model).device
    blank = blank_images(model, input_shape, images).contiguous(memory_format=torch.channels_last)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        logits = model(blank)
    return F.cross_entropy(logits.float(), torch.zeros(images, dtype=torch.int64, device=device))


def held_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of parameters, buffers, gradients and optimizer state."""
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    tensors += [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    return size_of(tensors)


def size_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all elements of the tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
