"""Sum the gradients over the ranks, by a communication hook of DistributedDataParallel that packs and counts them."""

# No `from __future__ import annotations`: torch checks the annotations of a communication hook.
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from suite.engine.cost.ledger import KeptGradients
from suite.engine.cost.memory import size_of
from suite.engine.training.method_runner import MethodRunner
from suite.errors import UsageError


def reduce_gradients(wrapped: DistributedDataParallel, runner: MethodRunner) -> None:
    """Let a wrapper of the model sum only the gradients that the method uses, and count what it communicates.

    If the method returns masks (`Method.kept_gradients`), the hook gathers the gradients of kept weights from each
    bucket, sums them over the ranks and writes them back. The other gradients become zero. With two ranks, the
    gradients of kept weights have the same bits as without this function. With more ranks, the order of the additions
    may differ, as it does between bucket sizes. Without masks, the bits are the same for any number of ranks. The hook
    adds the bytes to `runner.ranks.traffic`.

    Args:
        wrapped: A new wrapper of `runner.model`, without a communication hook. Call the function again for the new
            wrapper after a reconfiguration.
        runner: The runner of the method on the bare model.

    Raises:
        UsageError: if the wrapper wraps another model.
    """
    if wrapped.module is not runner.model:
        raise UsageError("reduce_gradients needs a DistributedDataParallel of runner.model, the bare model")
    reduction = _Reduction(runner)
    wrapped.register_comm_hook(reduction, _reduce)  # type: ignore[no-untyped-call]
    wrapped.register_forward_pre_hook(reduction.before_forward)


class _Reduction:
    """State of the communication hook of one wrapper."""

    def __init__(self, runner: MethodRunner) -> None:
        self._runner, self._traffic, self._size = runner, runner.ranks.traffic, runner.ranks.size
        self._kept = KeptGradients(runner.method)
        self._indices: dict[tuple[int, ...], Tensor | None] = {}  # by the ids of a bucket's parameters

    def before_forward(self, wrapped: nn.Module, inputs: Any) -> None:
        """Ask the method for its masks, and count the buffers that the wrapper is about to broadcast."""
        assert isinstance(wrapped, DistributedDataParallel)
        if wrapped.training and torch.is_grad_enabled() and self._kept.update(self._runner.ctx):
            self._indices.clear()
        if wrapped.will_sync_module_buffers():  # type: ignore[no-untyped-call]
            self._traffic.add("statistics", "broadcast", size_of(wrapped.modules_buffers))

    def start(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Start the sum of a bucket. The future holds the bucket with the mean over the ranks."""
        gradients = bucket.buffer()
        indices = self._kept_elements(bucket)
        sent = gradients if indices is None else gradients.index_select(0, indices)
        # Without a hook, DistributedDataParallel also multiplies by the reciprocal; a division would round differently.
        sent.mul_(1.0 / self._size)
        self._traffic.add("gradients", "all_reduce", sent.numel() * sent.element_size())
        done = dist.all_reduce(sent, async_op=True).get_future()
        if indices is None:
            return done.then(lambda future: future.value()[0])
        return done.then(lambda future: gradients.zero_().index_copy_(0, indices, future.value()[0]))

    def _kept_elements(self, bucket: dist.GradBucket) -> Tensor | None:
        """Return the ascending indices of the elements of a bucket to sum, (elements,); `None`: all of them."""
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key not in self._indices:
            self._indices[key] = self._find_elements(bucket) if self._kept.masks.keys() & set(key) else None
        return self._indices[key]

    def _find_elements(self, bucket: dist.GradBucket) -> Tensor:
        gradients = bucket.buffer()
        kept = torch.ones_like(gradients, dtype=torch.bool)
        for parameter, part in zip(bucket.parameters(), bucket.gradients(), strict=True):
            mask = self._kept.masks.get(id(parameter))
            if mask is not None:
                # A bucket has each gradient in its parameter's memory format, which `bucket.gradients()` hides.
                dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
                strides = parameter.stride() if dense else part.stride()
                offset = part.storage_offset() - gradients.storage_offset()
                kept.as_strided(part.shape, strides, offset).copy_(mask)
        return kept.nonzero().flatten()


# These annotations must not be strings, because DistributedDataParallel compares them with its own.
def _reduce(reduction: _Reduction, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return reduction.start(bucket)
