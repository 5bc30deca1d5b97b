"""Peak memory of a training step: the allocator's maximum on CUDA, counted bytes of tensors on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
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


PROBED_IMAGES = 16
"""Images of a measurement; on CUDA another with twice as many tells what an image adds."""


def bytes_an_image(model: nn.Module, input_shape: tuple[int, int, int], dtype: torch.dtype) -> float:
    """Bytes that one more image in a batch adds to a training step of a model; measured by running it.

    On the CPU what autograd keeps for backward is counted, as for a trial's peak memory. On CUDA the allocator's
    maximum over forward and backward is read for two batches, whose difference leaves out what no image adds; the
    maximum is reset by that.

    Args:
        model: a copy, for its statistics and gradients change; in the memory format in which it is trained.
        input_shape: (C, H, W).
        dtype: `torch.float32`, or the type of autocast.
    """
    device = next(model.parameters()).device
    model.train()
    if device.type != "cuda":
        saved = SavedTensors(model)
        with saved.counting():
            _loss(model, PROBED_IMAGES, input_shape, dtype)
        return saved.bytes / PROBED_IMAGES
    peaks = []
    for images in (PROBED_IMAGES, PROBED_IMAGES, 2 * PROBED_IMAGES):  # the first finds libraries cold
        model.zero_grad(set_to_none=True)
        torch.cuda.reset_peak_memory_stats(device)
        _loss(model, images, input_shape, dtype).backward()
        peaks.append(torch.cuda.max_memory_allocated(device))
    torch.cuda.reset_peak_memory_stats(device)
    return (peaks[2] - peaks[1]) / PROBED_IMAGES


def _loss(model: nn.Module, images: int, input_shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    """A loss of blank images, by the steps of training."""
    device = next(model.parameters()).device
    blank = torch.zeros(images, *input_shape, device=device).contiguous(memory_format=torch.channels_last)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        logits = model(blank)
    return F.cross_entropy(logits.float(), torch.zeros(images, dtype=torch.int64, device=device))


def held_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of parameters, buffers, gradients and optimizer state."""
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    tensors += [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
