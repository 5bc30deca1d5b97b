"""Loss and gradients of one training step as a CUDA graph, which is captured once and replayed in every step.

A replay runs no Python. Before each replay, the batch and the random keys (`suite.engine.network.random_keys`) are
written into the tensors that the graph reads. The optimizer is not part of the graph, so the learning rate and
the hooks around it work as in eager training. The operations and their order are the same as in eager training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suite.engine.cost.memory import SavedTensors
from suite.engine.network.planned_layer import ExecutedMeter
from suite.engine.network.random_keys import KeyBuffer
from suite.engine.training.method_runner import MethodRunner
from suite.engine.training.steps import EagerStep, Outcome, undisturbed
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
