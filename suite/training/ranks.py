"""The processes that train one model together, as `torch.distributed` has them; a process alone is one rank of one."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from suite.errors import UsageError


@dataclass(frozen=True)
class Ranks:
    """This process's rank in the default process group, and how many there are.

    All methods but `of_this_process` are collective: every rank has to call them, in the same order.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def of_this_process(cls) -> Ranks:
        """Those of the default process group; one rank where `torch.distributed` has not been initialised."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of the ranks' tensors, detached; the argument itself where there is one rank."""
        if self.size == 1:
            return tensor
        total = tensor.detach().clone()
        dist.all_reduce(total)
        return total

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean of the ranks' tensors, detached; the argument itself where there is one rank."""
        return tensor if self.size == 1 else self.all_reduce(tensor) / self.size

    @torch.no_grad()
    def share(self, model: nn.Module) -> None:
        """Give all ranks the first one's parameters and buffers, as wrapping in DistributedDataParallel does later."""
        if self.size == 1:
            return
        for tensor in (*model.parameters(), *model.buffers()):
            sent = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor.detach().contiguous()
            dist.broadcast(sent, 0)
            tensor.copy_(sent)

    def agree(self, what: str, value: Any) -> None:
        """Compare a value that all ranks must have in common.

        Args:
            what: the value in words, as the subject of the message.
            value: anything that can be pickled and compared.

        Raises:
            UsageError: on every rank, if one has another value.
        """
        if self.size == 1:
            return
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise UsageError(
                    f"{what} must be the same on all ranks: rank 0 has {values[0]}, rank {rank} has {other}"
                )


class WrapperGuard:
    """Refuses the forward of a DistributedDataParallel that wrapped the model before its shapes changed.

    Its buckets have the old shapes, and its hooks are those of parameters that autograd knows no longer: gradients of
    what was cut would stay the rank's own, without an error.

    Args:
        model: the bare model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._seen: weakref.ref[nn.Module] | None = None
        self._stale: weakref.ref[nn.Module] | None = None
        # A function, which copies of the model share; a bound method would be copied with its object.
        model.register_forward_pre_hook(lambda module, inputs: self._look())

    def shapes_changed(self) -> None:
        """The wrapper that ran last is void from now on."""
        self._stale = self._seen

    def _look(self) -> None:
        wrapper = DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
        if wrapper is None:
            return
        if self._stale is not None and wrapper is self._stale():
            raise UsageError(
                "the network was reconfigured after it was wrapped in DistributedDataParallel, whose buckets have the "
                "old shapes: wrap hooks.model in a new one after each hooks.end_epoch() that returns an IndexMap"
            )
        self._seen = weakref.ref(wrapper)
