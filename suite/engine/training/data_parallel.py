"""Several processes that train one model: shares of each batch, gradients of all of them, and equal states.

Each rank computes the gradients of its share of a batch, and torch's `DistributedDataParallel` averages them. Every
rank then takes the same optimizer step, and the method makes the same decisions. With one process nothing changes.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from suite.engine.cost.ledger import Ledger
from suite.engine.training.method_runner import MethodRunner
from suite.engine.training.mixing import BatchMixing
from suite.engine.training.ranks import Ranks
from suite.engine.training.reduction import reduce_gradients
from suite.errors import UsageError
from suite.plan import random_key
from suite.recipe import Recipe
from suite.task import Batches, ShareableBatches

# torch has renamed this option, which switches off the synchronisation of buffers in every step.
_RENAMED = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
_OWN_BUFFERS: Final[dict[str, Any]] = {"forward_sync_buffers" if _RENAMED else "broadcast_buffers": False}


class Batch(NamedTuple):
    """A rank's share of a training batch.

    Attributes:
        images, labels: (n, C, H, W), and (n,) or (n, classes), with n of at least 1.
        size: Number of images of the whole batch.
    """

    images: Tensor
    labels: Tensor
    size: int


class DataParallel:
    """The part of a training that several ranks share.

    Args:
        runner: The method on the bare model, which has found the ranks.

    Attributes:
        ranks: Rank of this process, and the number of ranks.
    """

    def __init__(self, runner: MethodRunner) -> None:
        self._runner, self._model = runner, runner.model
        self.ranks: Ranks = runner.ranks
        self._wrapped: DistributedDataParallel | None = None
        self._whole = 0  # images of the present batch, over all ranks
        self._idle = False  # whether this rank has no image of the present batch
        self._states_of_others: list[dict[str, Tensor | None]] = []

    @property
    def model(self) -> nn.Module:
        """The model to call in a training step: with several ranks, the wrapper that averages the gradients."""
        if self.ranks.size == 1:
            return self._model
        if self._wrapped is None:
            self.wrap()
            assert self._wrapped is not None
        return self._wrapped

    def wrap(self) -> None:
        """Discard an earlier wrapper, and wrap the model, whose parameters are new or have new shapes."""
        if self.ranks.size == 1:
            return
        self.unwrap()
        device = self._runner.ctx.device
        self._wrapped = DistributedDataParallel(
            self._model,
            device_ids=[device] if device.type == "cuda" else None,
            # All ranks have equal weights, which `check_states` verifies. Buffers are averaged once per epoch.
            init_sync=False,
            find_unused_parameters=self._runner.method.defines("branch_factors"),
            **_OWN_BUFFERS,
        )
        reduce_gradients(self._wrapped, self._runner)

    def unwrap(self) -> None:
        """Release the wrapper, because it owns the process group: gloo's threads run until the last owner is gone."""
        if self._wrapped is not None:
            self._wrapped = None
            gc.collect()  # the wrapper is part of a reference cycle, and its hooks would stay on the parameters

    def begin(self, seed: int, batches: Batches, recipe: Recipe) -> None:
        """Prepare the first step.

        Each rank but the first seeds torch's generators by its number, so that dropout differs between ranks.

        Args:
            seed: Seed of the trial.
            batches: The training split.
            recipe: The recipe.

        Raises:
            UsageError: A batch of the recipe has fewer images than there are ranks.
        """
        if self.ranks.size == 1:
            return
        check_batches(batches, recipe, self.ranks.size)
        if self.ranks.rank:
            torch.manual_seed(random_key(seed, 0, self.ranks.rank, "rank", "dropout"))
        self.wrap()

    def without_averaging(self) -> AbstractContextManager[Any]:
        """Return a context that adds up gradients on this rank only, for all micro-batches but the last."""
        model = self.model
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    def shares(self, batches: Batches, epoch: int, batch_size: int, mixing: BatchMixing | None) -> Iterator[Batch]:
        """Iterate over this rank's share of the training batches of an epoch.

        A batch size that the method asks for may leave a last batch with fewer images than there are ranks. A rank
        without an image of the batch still has to take part in the collective operations of the step. It gets one image
        of zeros, which does not count in gradients, losses, statistics and FLOPs.

        Args:
            batches, epoch, batch_size, mixing: As for `epoch`.
        """
        for images, labels, whole in self.epoch(batches, epoch, batch_size, mixing):
            self._idle = not len(images)
            if self._idle:
                images, labels = (empty.new_zeros(1, *empty.shape[1:]) for empty in (images, labels))
                images = images.contiguous(memory_format=torch.channels_last)
            yield Batch(images, labels, whole)

    def own(self, images: Tensor) -> int:
        """Return how many of `images`, this rank's share, belong to the present batch: none, or all."""
        return 0 if self._idle else len(images)

    def epoch(
        self, batches: Batches, epoch: int, batch_size: int, mixing: BatchMixing | None = None
    ) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Iterate over this rank's share of the batches of an epoch.

        Args:
            batches: The split.
            epoch: Number of the epoch, from 0.
            batch_size: Number of samples per batch, over all ranks.
            mixing: Mixes each batch before it is divided, so that all numbers of ranks train with the same images.

        Yields:
            Images (n, C, H, W), labels (n,) or (n, classes), and the number of images of the whole batch. n is 0 if
            the batch has no image for this rank.
        """
        rank, size = self.ranks.rank, self.ranks.size
        if size > 1 and mixing is None and isinstance(batches, ShareableBatches):
            for number, (images, labels) in enumerate(batches.share_of_epoch(epoch, batch_size, rank, size)):
                self._whole = min(batch_size, batches.num_samples - number * batch_size)
                yield images, labels, self._whole
            return
        for number, (images, labels) in enumerate(batches.epoch(epoch, batch_size)):
            if mixing is not None:
                images, labels = mixing(images, labels, epoch, number)
            self._whole = len(images)
            if size > 1:
                images, labels = images.tensor_split(size)[rank], labels.tensor_split(size)[rank]
            yield images, labels, self._whole

    def parts_of_loss(self, images: int, some: int) -> float:
        """Return by what to divide the mean loss of `some` of this rank's `images`.

        With this divisor, the averages over micro-batches and ranks add up to the mean over the whole batch. It is
        infinite for a rank without an image of the batch.
        """
        if self.ranks.size == 1:
            return images / some
        if self._idle:
            return math.inf
        return self._whole / (some * self.ranks.size)

    @contextmanager
    def statistics_of_own_images(self) -> Iterator[None]:
        """Let only images of the batch change the model's floating-point buffers.

        If this rank has no image of the batch, the buffers get their former values back afterwards. Integer buffers,
        which count batches, change on all ranks alike. Forward and backward both belong inside, because backward needs
        the buffers as they were in forward.
        """
        buffers = [buffer for buffer in self._model.buffers() if buffer.is_floating_point()] if self._idle else []
        before = [buffer.clone() for buffer in buffers]
        yield
        with torch.no_grad():
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)

    @torch.no_grad()
    def average_buffers(self) -> None:
        """Average the floating-point buffers, such as running means and variances, over the ranks."""
        if self.ranks.size == 1:
            return
        for model in (self._model, *self._runner.averages):
            for buffer in model.buffers():
                if buffer.is_floating_point():
                    buffer.copy_(self.ranks.all_reduce(buffer, "statistics") / self.ranks.size)

    def check_states(self) -> None:
        """Check that all ranks have the same weights, masks and states.

        Raises:
            UsageError: on every rank, if they differ; the message names the first tensor that does, and the rank.
        """
        if self.ranks.size == 1:
            return
        method = self._runner.method
        state = {"model": self._model.state_dict(), type(method).__name__: method.state_dict()}
        self.ranks.agree_on_tensors(digests(state))

    def add_counts(self, ledger: Ledger, before: Tensor, step_cost: Mapping[str, Any]) -> dict[str, Any]:
        """Add up what the ranks counted in an epoch.

        Args:
            ledger: The ledger of this rank, which gets the sums.
            before: Its `counts` before the epoch.
            step_cost: What a step cost on this rank (`Ledger.step_cost`).

        Returns:
            What the step cost on all ranks.
        """
        if self.ranks.size == 1:
            return dict(step_cost)
        ledger.set_counts(before + self._sum(ledger.counts() - before))
        flops = step_cost["step_flops"]
        *sums, overhead = self._sum(torch.tensor([*flops.values(), step_cost["step_overhead"]])).tolist()
        return {**step_cost, "step_flops": dict(zip(flops, sums, strict=True)), "step_overhead": overhead}

    def gather_random_states(self) -> None:
        """Fetch the states of the other ranks' random generators for a checkpoint. All ranks have to call this."""
        if self.ranks.size > 1:
            self._states_of_others = self.ranks.gather(random_state(self._runner.ctx.device))[1:]

    def record(self) -> dict[str, Any]:
        """Return the measured bytes that this rank communicated, by kind, for a record; empty with one rank."""
        return {"communication": dict(self.ranks.traffic.bytes)} if self.ranks.size > 1 else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks' random generators, those of others as gathered last, and the traffic."""
        others = {"random_of_other_ranks": self._states_of_others}
        return {**random_state(self._runner.ctx.device), **others, "traffic": self.ranks.traffic.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore this rank's part of what rank 0 returned as `state_dict`."""
        self.ranks.traffic.load_state_dict(state["traffic"])
        ours = state["random_of_other_ranks"][self.ranks.rank - 1] if self.ranks.rank else state
        set_random_state(ours, self._runner.ctx.device)

    def _sum(self, values: Tensor) -> Tensor:
        """Return the sum of float64 values over the ranks, on the CPU."""
        return self.ranks.all_reduce(values.double().to(self._runner.ctx.device), "bookkeeping").cpu()


def random_state(device: torch.device) -> dict[str, Tensor | None]:
    """Return the states of torch's generators of the CPU and, if it is a GPU, of the device."""
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"random": torch.get_rng_state(), "random_cuda": on_gpu}


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Restore `random_state`."""
    torch.set_rng_state(state["random"].cpu())
    if state["random_cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["random_cuda"].cpu(), device)


def check_batches(batches: Batches, recipe: Recipe, ranks: int) -> None:
    """Check that every rank has an image in each batch of a training with the recipe's batch size.

    Raises:
        UsageError: A batch has fewer images than there are ranks.
    """
    size = recipe.batch_size
    last = 0 if recipe.drop_last else batches.num_samples % size
    if size < ranks:
        raise UsageError(f"a batch of {size} is too small for {ranks} processes; use a larger --batch-size")
    if 0 < last < ranks:
        raise UsageError(
            f"the last batch of an epoch has {last} of {batches.num_samples} images, fewer than the {ranks} processes; "
            "use another --batch-size or --set recipe.drop_last=true"
        )


def digests(state: Any, name: str = "") -> dict[str, str]:
    """Return a digest of each tensor and number in nested dicts and lists, by its keys: `model, conv.weight`."""
    if isinstance(state, Tensor):
        content = state.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return {name: hashlib.blake2b(content, digest_size=8).hexdigest() + str(tuple(state.shape))}
    if isinstance(state, dict):
        by_name: dict[str, str] = {}
        for key, value in state.items():
            by_name |= digests(value, f"{name}, {key}" if name else str(key))
        return by_name
    if isinstance(state, (list, tuple)):
        return digests(dict(enumerate(state)), name)
    return {name: repr(state)}
