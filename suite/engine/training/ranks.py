"""Ranks: the processes of `torch.distributed` that train one model together. A single process is one rank of one.

Ranks measure the bytes that they communicate. There are five kinds of bytes:

    gradients    gradients of the parameters, summed over the ranks once per step
    statistics   buffers of the network, such as the running mean of batch normalisation
    decisions    values from which all ranks make the same decision: the loss, and what a method reduces
    bookkeeping  values that show whether the ranks agree, or that go into records and checkpoints
    start        parameters and buffers of rank 0, with which all ranks start

A number is the size of the tensor that a rank hands to a collective operation. The bytes on the network depend on the
algorithm of that operation. `suite.engine.cost.paper_conventions` models them for the ring all-reduce.
"""

from __future__ import annotations

import gc
import io
import pickle
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from suite.engine.cost.memory import size_of
from suite.errors import UsageError

if dist.is_available():
    # Import this module before a process group exists, because its default arguments are the group at that time. If
    # torch._dynamo imported it later, the group and gloo's threads would live until the process ends, and could abort
    # it then.
    import torch.distributed.nn


ALL_CALL_S = 300.0  # how long rank 0 waits for the others in `Ranks.meet`


Kind = Literal["gradients", "statistics", "decisions", "bookkeeping", "start"]
Collective = Literal["all_reduce", "broadcast", "all_gather"]


class Traffic:
    """Measures what this rank hands to collective operations, in bytes.

    Attributes:
        bytes: Bytes by kind since the training began, without kinds that have not occurred.
        all_reduced: The part of `bytes` that was handed to an all-reduce.
    """

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self.all_reduced = 0

    def add(self, kind: Kind, collective: Collective, size: int) -> None:
        """Add `size` bytes that are now handed to a collective operation."""
        self.bytes[kind] = self.bytes.get(kind, 0) + size
        if collective == "all_reduce":
            self.all_reduced += size

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed trial needs."""
        return {"bytes": dict(self.bytes), "all_reduced": self.all_reduced}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Add what earlier attempts communicated up to `state_dict`."""
        for kind, size in state["bytes"].items():
            self.bytes[kind] = self.bytes.get(kind, 0) + size
        self.all_reduced += state["all_reduced"]


@dataclass(frozen=True)
class Ranks:
    """Rank of this process in the default process group, and the number of ranks.

    All methods except `of_this_process` are collective: every rank must call them, in the same order.

    Attributes:
        rank, size: Rank of this process, and the number of ranks.
        traffic: Counter of the bytes that this rank hands to collective operations.
    """

    rank: int = 0
    size: int = 1
    traffic: Traffic = field(default_factory=Traffic, compare=False)

    @classmethod
    def of_this_process(cls) -> Ranks:
        """Return rank and size of the default process group; one rank if `torch.distributed` is not initialised."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    def all_reduce(self, tensor: Tensor, kind: Kind = "decisions") -> Tensor:
        """Return the sum of the ranks' tensors, detached; with one rank, the argument itself.

        Args:
            tensor: The tensor of this rank.
            kind: The kind of traffic that its bytes count as.
        """
        if self.size == 1:
            return tensor
        total = tensor.detach().clone()
        self.traffic.add(kind, "all_reduce", size_of([total]))
        dist.all_reduce(total)
        return total

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean of the ranks' tensors, detached; with one rank, the argument itself."""
        return tensor if self.size == 1 else self.all_reduce(tensor) / self.size

    @torch.no_grad()
    def share(self, model: nn.Module) -> None:
        """Copy parameters and buffers of rank 0 to all ranks, as DistributedDataParallel does."""
        if self.size == 1:
            return
        for tensor in (*model.parameters(), *model.buffers()):
            sent = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor.detach().contiguous()
            self.traffic.add("start", "broadcast", size_of([sent]))
            dist.broadcast(sent, 0)
            tensor.copy_(sent)

    def from_first(self, value: Any) -> Any:
        """Return on all ranks the value of rank 0, which consists of plain data and tensors."""
        if self.size == 1:
            return value
        content = _bytes_of(value)
        length = torch.tensor([content.numel()], device=content.device)
        dist.broadcast(length, 0)
        if self.rank:
            content = content.new_empty(int(length))
        dist.broadcast(content, 0)
        self.traffic.add("bookkeeping", "broadcast", size_of([length, content]))
        return _value_of(content)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, which consist of plain data and tensors, in the order of the ranks."""
        if self.size == 1:
            return [value]
        content = _bytes_of(value)
        length = torch.tensor([content.numel()], device=content.device)
        lengths = [torch.empty_like(length) for _ in range(self.size)]
        dist.all_gather(lengths, length)
        padded = content.new_zeros(int(max(lengths)))
        padded[: content.numel()] = content
        contents = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(contents, padded)
        self.traffic.add("bookkeeping", "all_gather", size_of([length, padded]))
        return [_value_of(received[: int(size)]) for received, size in zip(contents, lengths, strict=True)]

    def meet(self, what: str) -> None:
        """Wait until all ranks have called this, on rank 0 for five minutes at most; only gloo can do this.

        Only rank 0's wait is short: its own work, such as an evaluation, may take longer than that of the others.

        Args:
            what: What every rank has to call, as the subject of the error message.

        Raises:
            UsageError: on rank 0, if another rank ended or has not called it.
        """
        if self.size == 1 or dist.get_backend() != "gloo":
            return
        try:
            dist.monitored_barrier(timeout=None if self.rank else timedelta(seconds=ALL_CALL_S))
        except RuntimeError as error:
            if self.rank:
                raise
            raise UsageError(
                f"{what} was called by rank 0, and another rank ended or did not call it within {ALL_CALL_S:.0f} s: "
                "every rank has to call it, and not under `if rank == 0`"
            ) from error

    def agree_on_tensors(self, digests: dict[str, str]) -> None:
        """Check that all ranks have the same tensors.

        Args:
            digests: Digest of each tensor, by its name.

        Raises:
            UsageError: on every rank, if a rank has a different tensor; the message names the tensor and the rank.
        """
        of_ranks = self.gather(digests)
        for rank, other in enumerate(of_ranks):
            different = [name for name in {**of_ranks[0], **other} if of_ranks[0].get(name) != other.get(name)]
            if different:
                raise UsageError(
                    f"the ranks do not train the same network: {different[0]} of rank {rank} is not that of rank 0 "
                    f"({len(different)} of {len(other)} differ)"
                )

    def agree(self, what: str, value: Any) -> None:
        """Check that all ranks have the same value.

        Args:
            what: Name of the value, as the subject of the error message.
            value: Plain data, which can be compared.

        Raises:
            UsageError: on every rank, if a rank has a different value.
        """
        values = self.gather(value)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise UsageError(
                    f"{what} must be the same on all ranks: rank 0 has {values[0]}, rank {rank} has {other}"
                )


def _bytes_of(value: Any) -> Tensor:
    """Return a value as bytes, on the device whose tensors the ranks exchange."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    on_gpu = "nccl" in dist.get_backend()
    return torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8).to("cuda" if on_gpu else "cpu")


def _value_of(content: Tensor) -> Any:
    """Return the value whose bytes `_bytes_of` returned. Unlike torch's exchange of objects, this runs no code in them.

    Raises:
        UsageError: The value has objects of other classes, or is incomplete.
    """
    try:
        return torch.load(io.BytesIO(content.cpu().numpy().tobytes()), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise UsageError("the ranks exchange plain data and tensors only, not objects of other classes") from error


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse a model that is wrapped, sharded or compiled.

    Raises:
        UsageError: the message says what to do.
    """
    if isinstance(model, DistributedDataParallel):
        raise UsageError("the model is wrapped in DistributedDataParallel; apply the method first, then wrap it")
    if isinstance(model, nn.DataParallel):
        raise UsageError(
            "DataParallel is not supported, because its copies of the layers follow no plan; use "
            "DistributedDataParallel, with one process for each GPU"
        )
    # Compare names of classes, because importing them from torch takes a fifth of a second.
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    # FSDP replaces the parameters of the model that it wraps by a flat one.
    flat = any("_flat_param" in module._parameters for module in model.modules())
    if flat or kinds & {"FullyShardedDataParallel", "FSDPModule"}:
        raise UsageError(
            "sharded models (FSDP) are not supported, because no process has whole weights; use DistributedDataParallel"
        )
    scripted = [name for name, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)]
    if scripted:
        raise UsageError(
            f"{repr(scripted[0]) if scripted[0] else 'the model'} is scripted or traced (torch.jit), and follows "
            "no plan; apply the method to the model in Python, and script what suite.ops.restore(model) returns"
        )
    if hasattr(model, "_orig_mod"):
        raise UsageError("the model is compiled; apply the method to the bare model first, then call torch.compile")


class WrapperGuard:
    """Refuses the forward of a DistributedDataParallel that wrapped the model before its shapes changed.

    The buckets of such a wrapper have the old shapes, and its hooks belong to gradient accumulators that surgery has
    renewed. Without the guard, the ranks would silently not sum the gradients of cut parameters.

    Args:
        model: The bare model.

    Attributes:
        of_training: True: `suite.ops.restore` removes this hook of the model.
    """

    of_training: Final = True
    _old: tuple[weakref.ref[nn.Module], ...] = ()  # wrappers from before the last change

    def __init__(self, model: nn.Module) -> None:
        model.register_forward_pre_hook(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> WrapperGuard:
        return self  # copies of the model share it

    def __getstate__(self) -> dict[str, Any]:
        return {}  # a saved model has no wrapper

    def shapes_changed(self) -> None:
        """From now on, refuse all present wrappers, also those that have not run yet."""
        # A model does not know its wrappers. `isinstance` would fail on proxies whose objects are gone.
        wrappers = [thing for thing in gc.get_objects() if issubclass(type(thing), DistributedDataParallel)]
        self._old = tuple(map(weakref.ref, wrappers))

    def __call__(self, model: nn.Module, inputs: Any) -> None:
        wrapper = DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
        if wrapper is not None and any(reference() is wrapper for reference in self._old):
            raise UsageError(
                "the network was reconfigured after it was wrapped in DistributedDataParallel, whose buckets have the "
                "old shapes: wrap hooks.model in a new one after each hooks.end_epoch() that returns an IndexMap, and "
                "after hooks.load()"
            )
