"""Loss and gradients of one training step, eager or compiled; `suite.training.cuda_graph` has the third way.

Only this part of a step is executed in different ways. What comes before it (`transform_batch`) and after it (clipping,
the hooks around the optimizer, the optimizer) is the same Python in all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from suite.cost.memory import SavedTensors
from suite.recipe import Recipe
from suite.training.hooks import Hooks

log = logging.getLogger(__name__)

Outcome = tuple[Tensor, Tensor | None]
"""The task's loss and the method's term, 0-dimensional, detached and unscaled; no term: `None`."""


class EagerStep:
    """One operation after another, as Python calls them.

    Args:
        hooks: of the method on its model.
        recipe: how to train.
        dtype: `torch.float32`, or the type of autocast.
        scaler: multiplies the loss before backward; `None` leaves it.
    """

    def __init__(
        self, hooks: Hooks, recipe: Recipe, dtype: torch.dtype, scaler: torch.amp.GradScaler | None = None
    ) -> None:
        self.hooks, self.model, self.recipe, self.dtype, self.scaler = hooks, hooks.model, recipe, dtype, scaler
        self.device = hooks.ctx.device

    def is_ready(self, images: Tensor, labels: Tensor) -> bool:
        """Whether a batch like this can be trained on without `prepare`."""
        return True

    def prepare(self, images: Tensor, labels: Tensor) -> None:
        """Do once what batches like this need, outside the time of training. Nothing that is trained changes."""

    def forget(self) -> None:
        """The model is another from now on: what was prepared for it is void."""

    def gradients(self, images: Tensor, labels: Tensor, saved: SavedTensors | None = None) -> Outcome:
        """Gradients of a batch into `.grad`, scaled if there is a scaler; they are added where there are some.

        Args:
            images: (N, C, H, W). Micro-batches differ by one image at most; there are fewer of them if N is smaller.
            labels: (N,) int64, or probabilities (N, classes).
            saved: counts what the first micro-batch keeps for backward.
        """
        split = self._micro_batches(images, labels)
        parts = len(split)
        task_loss, term = torch.zeros((), device=self.device), None
        for part, (some_images, some_labels) in enumerate(split):
            self.hooks.begin_micro_batch(part, self.recipe.micro_batches)
            with saved.counting() if saved and part == 0 else nullcontext():
                loss = self.task_loss(some_images, some_labels) / (len(images) / len(some_images))
            task_loss += loss.detach()
            if part == parts - 1:
                term = self.hooks.regularization(task_loss)
                if term is not None:
                    loss = loss + term
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        return task_loss, None if term is None else term.detach()

    def _micro_batches(self, images: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
        parts = min(self.recipe.micro_batches, len(images))
        return list(zip(images.tensor_split(parts), labels.tensor_split(parts), strict=True))

    def peak_memory(self) -> int:
        """The most bytes of a CUDA device that this process has held since the epoch's training began."""
        return torch.cuda.max_memory_allocated(self.device)

    def task_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean cross entropy of a micro-batch, in float32."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits = self.model(images)
        return F.cross_entropy(logits.float(), labels, label_smoothing=self.recipe.label_smoothing)


class CompiledStep(EagerStep):
    """Forward and backward as one graph that `torch.compile` made; the method's regulariser stays eager.

    A model of which no single graph can be made, or which needs too many of them, is an error of torch's that says why,
    not a slow step. The model itself stays bare: names in its state dict are as ever.

    Args:
        backend: of `torch.compile`.
    """

    def __init__(
        self,
        hooks: Hooks,
        recipe: Recipe,
        dtype: torch.dtype,
        scaler: torch.amp.GradScaler | None = None,
        backend: str = "inductor",
    ) -> None:
        super().__init__(hooks, recipe, dtype, scaler)
        self._backend = backend
        self._prepared: set[tuple[object, ...]] = set()  # of whole batches, and of a last, smaller one

    def is_ready(self, images: Tensor, labels: Tensor) -> bool:
        return self._depends_on(images, labels) in self._prepared

    def prepare(self, images: Tensor, labels: Tensor) -> None:
        if not self._prepared:
            self.task_loss = torch.compile(  # type: ignore[method-assign]
                super().task_loss, backend=self._backend, fullgraph=True, dynamic=False
            )
        by_size = {len(some_images): (some_images, some_labels) for some_images, some_labels in
                   self._micro_batches(images, labels)}  # fmt: skip
        with undisturbed(self.hooks):
            for some_images, some_labels in by_size.values():
                self.task_loss(some_images, some_labels).backward()
        self._prepared.add(self._depends_on(images, labels))

    def forget(self) -> None:
        # Without the reset, the graphs of earlier shapes count towards the limit behind which torch compiles no more.
        torch._dynamo.reset()
        self._prepared.clear()

    def gradients(self, images: Tensor, labels: Tensor, saved: SavedTensors | None = None) -> Outcome:
        before = _graphs_made()
        outcome = super().gradients(images, labels, saved)
        if _graphs_made() > before:
            log.warning(
                "step %d was compiled again within the time of training: trust no time of this epoch",
                self.hooks.ctx.step + 1,
            )
        return outcome

    def _depends_on(self, images: Tensor, labels: Tensor) -> tuple[object, ...]:
        plans = tuple((layer.planned, layer.masked) for layer in self.hooks.planned_layers)
        return (images.shape, images.stride(), images.dtype, labels.shape, labels.dtype, plans)


@contextmanager
def undisturbed(hooks: Hooks) -> Iterator[None]:
    """What runs inside leaves no trace: buffers, random states and meters are as before, gradients are gone.

    Parameters are nobody's to change inside.
    """
    model, device = hooks.model, hooks.ctx.device
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    random = torch.get_rng_state()
    random_cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    yield
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    torch.set_rng_state(random)
    if random_cuda is not None:
        torch.cuda.set_rng_state(random_cuda, device)
    for layer in hooks.planned_layers:
        layer.meter.take()
    model.zero_grad(set_to_none=True)


def _graphs_made() -> int:
    """How many graphs torch has compiled in this process."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]
