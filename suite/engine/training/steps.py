"""Loss and gradients of one training step, eager or compiled. For CUDA graphs, see `suite.engine.training.cuda_graph`.

Only this part of a step depends on the execution mode. The parts before it (`transform_batch`) and after it (clipping,
the optimizer and the hooks around it) are the same Python code in all modes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from suite.engine.cost.memory import SavedTensors
from suite.engine.training.data_parallel import DataParallel, random_state, set_random_state
from suite.engine.training.method_runner import MethodRunner
from suite.recipe import Recipe

log = logging.getLogger(__name__)

BACKEND = "inductor"  # of torch.compile
Outcome = tuple[Tensor, Tensor | None]
"""Loss of the task and term of the method (or `None`): 0-dimensional, detached and unscaled."""


class EagerStep:
    """A step that runs eagerly.

    Args:
        runner: The method on its model.
        recipe: The recipe.
        dtype: `torch.float32`, or the autocast type.
        scaler: Scaler that multiplies the loss before the backward; `None` for no scaling.
    """

    def __init__(
        self, runner: MethodRunner, recipe: Recipe, dtype: torch.dtype, scaler: torch.amp.GradScaler | None = None
    ) -> None:
        self.runner, self.model, self.recipe, self.dtype, self.scaler = runner, runner.model, recipe, dtype, scaler
        self.device = runner.ctx.device
        self.parallel = DataParallel(runner)

    def is_ready(self, images: Tensor, labels: Tensor) -> bool:
        """Return whether `gradients` can be called for such a batch without `prepare`."""
        return True

    def prepare(self, images: Tensor, labels: Tensor) -> None:
        """Prepare steps with batches of these shapes. The training time and the state of the training do not change."""

    def forget(self) -> None:
        """Discard what was prepared, because the model has changed."""

    def gradients(self, images: Tensor, labels: Tensor, saved: SavedTensors | None = None) -> Outcome:
        """Add the gradients of a batch to `.grad`, scaled if there is a scaler, and return loss and term.

        Args:
            images: (N, C, H, W), the share of this rank. The sizes of micro-batches differ by at most one image. Their
                number is that of the recipe, or N if N is smaller.
            labels: (N,) int64, or (N, classes) probabilities.
            saved: Counter of the tensors that the first micro-batch keeps for backward. If the step leaves out
                branches, another forward with all branches is counted, since the largest step has them.
        """
        clock = self.runner.clock
        split = self._micro_batches(images, labels)
        parts = len(split)
        task_loss, term = torch.zeros((), device=self.device), None
        if saved and self.runner.ctx.left_out:
            with undisturbed(self.runner), self.runner.whole_network(), self.parallel.without_averaging():
                with saved.counting():
                    self.task_loss(*split[0])
            saved = None
        with clock.span("network"):
            for part, (some_images, some_labels) in enumerate(split):
                self.runner.begin_micro_batch(part, self.recipe.micro_batches)
                last = part == parts - 1
                with nullcontext() if last else self.parallel.without_averaging():
                    with saved.counting() if saved and part == 0 else nullcontext():
                        with clock.forward():
                            loss = self.task_loss(some_images, some_labels)
                        clock.time_backward(loss)
                        loss = loss / self.parallel.parts_of_loss(len(images), len(some_images))
                    task_loss += loss.detach()
                    self._backward(loss)
            # The term stays out of the sum over the ranks, because every rank has the same term.
            term = self.runner.term_of_step(task_loss)
            if term is not None and term.requires_grad:
                clock.time_term(term)
                self._backward(term)
        assert self.runner.ctx.task_loss is not None
        return self.runner.ctx.task_loss, None if term is None else term.detach()

    def _backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    def _micro_batches(self, images: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
        parts = min(self.recipe.micro_batches, len(images))
        return list(zip(images.tensor_split(parts), labels.tensor_split(parts), strict=True))

    def peak_memory(self) -> int:
        """Return the largest number of bytes that this process has held on the CUDA device in this epoch's training."""
        return torch.cuda.max_memory_allocated(self.device)

    def task_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross entropy of a micro-batch, in float32."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits = self.parallel.model(images)
        return F.cross_entropy(logits.float(), labels, label_smoothing=self.recipe.label_smoothing)


class CompiledStep(EagerStep):
    """A step whose forward and backward are one graph of `torch.compile`; the regularization term stays eager.

    If torch cannot compile the model to one graph, or needs too many graphs, it raises an error instead of running
    slowly. The model itself is not wrapped, so that the names in its state dict do not change.
    """

    def __init__(
        self, runner: MethodRunner, recipe: Recipe, dtype: torch.dtype, scaler: torch.amp.GradScaler | None = None
    ) -> None:
        super().__init__(runner, recipe, dtype, scaler)
        self._prepared: set[tuple[object, ...]] = set()  # for full batches, and for a smaller last one

    def is_ready(self, images: Tensor, labels: Tensor) -> bool:
        return self._depends_on(images, labels) in self._prepared

    def prepare(self, images: Tensor, labels: Tensor) -> None:
        if not self._prepared:
            self.task_loss = torch.compile(  # type: ignore[method-assign]
                super().task_loss, backend=BACKEND, fullgraph=True, dynamic=False
            )
        by_size = {len(some_images): (some_images, some_labels) for some_images, some_labels in
                   self._micro_batches(images, labels)}  # fmt: skip
        with undisturbed(self.runner):
            for some_images, some_labels in by_size.values():
                self.task_loss(some_images, some_labels).backward()
        self._prepared.add(self._depends_on(images, labels))

    def forget(self) -> None:
        # The reset keeps graphs of earlier shapes from counting towards the limit on recompilations.
        torch._dynamo.reset()
        self._prepared.clear()

    def gradients(self, images: Tensor, labels: Tensor, saved: SavedTensors | None = None) -> Outcome:
        before = _graphs_made()
        outcome = super().gradients(images, labels, saved)
        if _graphs_made() > before:
            log.warning(
                "step %d was compiled again during training: the times of this epoch are not reliable",
                self.runner.ctx.step + 1,
            )
        return outcome

    def _depends_on(self, images: Tensor, labels: Tensor) -> tuple[object, ...]:
        plans = tuple((layer.planned, layer.masked) for layer in self.runner.planned_layers)
        return (images.shape, images.stride(), images.dtype, labels.shape, labels.dtype, plans)


@contextmanager
def undisturbed(runner: MethodRunner) -> Iterator[None]:
    """Afterwards, restore buffers and random states, and clear meters and gradients.

    Do not modify parameters inside this context.
    """
    model, device = runner.model, runner.ctx.device
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    random = random_state(device)
    yield
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    set_random_state(random, device)
    for layer in runner.planned_layers:
        layer.meter.take()
    model.zero_grad(set_to_none=True)


def _graphs_made() -> int:
    """Return the number of graphs that torch has compiled in this process."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]
