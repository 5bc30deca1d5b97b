"""Loss and gradients of one training step as a CUDA graph, which is captured once and replayed in every step.

A replay runs no Python. Before each replay, the batch and the random keys are written into the tensors that the graph
reads. The optimizer is not part of the graph, so the learning rate and the hooks around it work as in eager training.
The operations and their order are the same as in eager training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suite.engine.cost.memory import SavedTensors
from suite.engine.network.planned_layer import ExecutedMeter
from suite.engine.training.method_runner import MethodRunner
from suite.engine.training.steps import EagerStep, Outcome, undisturbed
from suite.plan import random_key
from suite.recipe import Recipe

WARM_UP = 3
"""Number of steps before the capture, in which libraries choose algorithms and allocate memory."""
OPERANDS = 4


class GraphStep(EagerStep):
    """A step that is captured as a CUDA graph, and captured again whenever shapes or plans change.

    If the last batch of an epoch is smaller than the others, it runs eagerly: a graph has one shape, and two captures
    per epoch would take longer.
    """

    _graph: torch.cuda.CUDAGraph | None
    _outcome: Outcome
    _gradients: list[tuple[Tensor, Tensor | None]]  # parameter and gradient
    _executed: list[tuple[ExecutedMeter, ExecutedMeter]]  # a layer's meter, and a meter with what one step adds to it
    _tensors: list[Tensor]  # tensors whose memory the graph reads and writes

    def __init__(
        self, runner: MethodRunner, recipe: Recipe, dtype: torch.dtype, scaler: torch.amp.GradScaler | None = None
    ) -> None:
        super().__init__(runner, recipe, dtype, scaler)
        self.forget()

    def is_ready(self, images: Tensor, labels: Tensor) -> bool:
        if self._graph is None:
            return False
        return self._is_smaller(images) or self._captured == self._depends_on(images, labels)

    def prepare(self, images: Tensor, labels: Tensor) -> None:
        self.forget()
        self._images, self._labels = images.clone(), labels.clone()
        places = OPERANDS * len(self.runner.planned_layers) * self.recipe.micro_batches
        self._keys = KeyBuffer(places, self.runner.ctx.seed, self.device)
        stream, outside = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)
        graph = torch.cuda.CUDAGraph()
        with undisturbed(self.runner), self.runner.drawing_from(self._keys):
            stream.wait_stream(outside)
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    self.model.zero_grad(set_to_none=True)
                    super().gradients(self._images, self._labels)
                self.model.zero_grad(set_to_none=True)
            outside.wait_stream(stream)
            for layer in self.runner.planned_layers:
                layer.meter.take()
            with torch.cuda.graph(graph, stream=stream):
                self._outcome = super().gradients(self._images, self._labels)
            # A replay writes into the memory of these gradients, even if `.grad` has been replaced since.
            self._gradients = [(parameter, parameter.grad) for parameter in self.model.parameters()]
            self._executed = [(layer.meter, layer.meter.copy()) for layer in self.runner.planned_layers]
        self._graph = graph
        self._tensors = [*self.model.parameters(), *self.model.buffers()]
        self._captured = self._depends_on(images, labels)

    def forget(self) -> None:
        # Free the graph's memory before the next capture allocates its own.
        self._graph = None
        self._gradients, self._executed, self._tensors = [], [], []
        self._outcome = (torch.zeros(()), None)

    def gradients(self, images: Tensor, labels: Tensor, saved: SavedTensors | None = None) -> Outcome:
        assert self._graph is not None, "call prepare() first"
        if self._is_smaller(images):
            return super().gradients(images, labels, saved)
        self._images.copy_(images)
        self._labels.copy_(labels)
        self._keys.fill(self.runner.ctx.step)
        self._graph.replay()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        for meter, captured in self._executed:
            meter.add_all(captured)
        return self._outcome

    def _is_smaller(self, images: Tensor) -> bool:
        return len(images) < len(self._images)

    def peak_memory(self) -> int:
        # A graph keeps its memory between replays, which the allocator counts as reserved and not as allocated.
        return torch.cuda.max_memory_reserved(self.device)

    def _depends_on(self, images: Tensor, labels: Tensor) -> tuple[object, ...]:
        addresses = tuple(tensor.data_ptr() for tensor in self._tensors)
        return (images.shape, images.dtype, labels.shape, labels.dtype, self.runner.plans_made, addresses)


class KeyBuffer:
    """A buffer on the device with the random key of every layer, operand and slot that draws in a captured step.

    A replay would repeat a key that Python computes, so that every step would draw the numbers of the captured step. A
    captured transform therefore receives an entry of this buffer. Before each replay, one copy fills all entries with
    the keys that the step has in eager training.

    Args:
        capacity: Maximum number of entries.
        seed: Seed of the trial.
        device: Device on which the kernels read the keys.
    """

    def __init__(self, capacity: int, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._entries: dict[tuple[str, str, int], int] = {}  # by layer, operand and slot
        self._values = torch.zeros(capacity, dtype=torch.int64, device=device)

    def of(self, name: str, operand: str, slot: int) -> Tensor:
        """Return the entry of one layer, operand and slot: 0-dimensional, int64, always at the same address.

        Raises:
            IndexError: if there are more entries than the buffer's capacity.
        """
        return self._values[self._entries.setdefault((name, operand, slot), len(self._entries))]

    def fill(self, step: int) -> None:
        """Fill every entry with its key for this step."""
        if not self._entries:
            return
        keys = [random_key(self._seed, step, slot, operand, name) for name, operand, slot in self._entries]
        # Pinned memory makes the copy asynchronous. Each step allocates its own, because copies of earlier steps may
        # still be queued; torch does not reuse the memory before its copy has finished.
        pinned = torch.tensor(keys, dtype=torch.int64, pin_memory=self._values.is_cuda)
        self._values[: len(keys)].copy_(pinned, non_blocking=True)
