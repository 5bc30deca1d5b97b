"""The contract of a method: what it may change in a training run, and when it is asked.

A layer's arithmetic is *planned*, not hooked: `plan` gives each convolution and linear layer an `OpPlan`, which has one
optional transform for each operand of its three products. Everything else is a hook. A run, in pseudo-code:

    method.setup(ctx)                                  # the bare model, on its device and in its memory format
    for each plan of method.begin(ctx): the network is changed before it is trained
    for each layer: layer.plan = method.plan(name, layer)
    for each epoch:
        for each step:
            method.transform_batch(images, labels, ctx)    # on the whole batch; labels may become probabilities
            for each micro-batch: forward, backward        # the plans' transforms run here
            loss += method.regularization(model, ctx)      # with the last micro-batch, autocast off
            # here gradients are global and finite; a step where they are not goes to the next batch
            if method.before_optimizer_step(ctx) is not SKIP_STEP:
                optimizer.step()
            method.after_optimizer_step(ctx)
            # a changed method.plan_version: every layer is planned anew
        method.on_epoch_end(ctx)                       # may change weights
        if plan := method.reconfigure(ctx):            # a decision; the trainer carries it out on model and optimizer
            method.on_reconfigured(index_map, ctx)     # the method renumbers what it remembers
            for each layer: layer.plan = method.plan(name, layer)
        after the last epoch: weight <- weight_forward(weight), every plan emptied
        evaluation                                     # what is reported is always the model that exists
        method.record(ctx)                             # what epochs.jsonl should say of it beside what it always does
        checkpoint                                     # with method.state_dict()

On resume the reconfigurations are replayed (`on_reconfigured` is called for each), then `load_state_dict`, then `plan`.

A method's parameters are its annotated class attributes. They become the keywords of its constructor, may be typed in
brackets (`sdgp[n=2,m=4]`), and name the trial:

    @register("method", "sdgp")
    class SDGP(Method):
        n: int = 2
        m: int = 4

Dense training is a method with nothing in it. A method that would need a special case in the trainer shows that this
contract is wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Self, dataclass_transform

import torch
from torch import Tensor, nn

from suite.index_spaces import IndexSpaces
from suite.parameters import check
from suite.plan import (
    EMPTY_PLAN,
    Backend,
    Compact,
    Density,
    Geometry,
    Layer,
    Operand,
    OpPlan,
    SharedTransform,
    Site,
    Transform,
)
from suite.random_keys import random_key
from suite.reconfiguration import IndexMap, ReconfigPlan

__all__ = [
    "EMPTY_PLAN",
    "SKIP_STEP",
    "Backend",
    "Compact",
    "Context",
    "Density",
    "Geometry",
    "IndexMap",
    "IndexSpaces",
    "Layer",
    "Method",
    "OpPlan",
    "Operand",
    "OtherTrial",
    "ReconfigPlan",
    "SharedTransform",
    "Site",
    "Transform",
]


class _SkipStep:
    """The type of `SKIP_STEP`."""

    def __repr__(self) -> str:
        return "SKIP_STEP"


SKIP_STEP: Final = _SkipStep()
"""Returned by `before_optimizer_step`: no optimizer step this time; all else goes on."""


@dataclass(frozen=True)
class OtherTrial:
    """What became of a trial that another one depends on.

    Attributes:
        reconfigurations: the plans that were carried out on its network, in order.
        inference_flops: of its final network, for one image.
        model_file: its `model.pt`, which `suite.checkpoint.load_model` opens; `None` where nobody named one.
    """

    reconfigurations: tuple[ReconfigPlan, ...]
    inference_flops: float
    model_file: Path | None = None


@dataclass
class Context:
    """What a hook may know and use. One object for the whole trial; the trainer keeps it up to date.

    Attributes:
        model: the bare model (no DDP, not compiled).
        layers: the layers that can be planned, by name: each `nn.Conv2d` and `nn.Linear` (no subclass) that the model
            calls in training or in evaluation. Every hook sees the same objects; in `setup` their plans are empty.
        spaces: its index spaces: which dimensions of which tensors share channels (`suite.index_spaces`); their
            `removable_branches` are the residual branches that may be removed.
        optimizer: `None` in `setup`, which runs before there is one.
        step: optimizer steps attempted since the trial began.
        epochs_done: epochs that ended; the same number in every hook of one epoch's end.
        batch_index: index of the step in its epoch.
        progress: share of the training done, in [0, 1].
        epochs: epochs of the whole training.
        batch_size: global batch size, over all micro-batches and ranks.
        task_loss: the step's loss without the regulariser: mean over micro-batches and ranks, detached. In
            `regularization` it is the loss of the step that is running; `None` before the first step of a process.
        network: the registered name of the network; empty where nobody said.
        preset: `smoke`, `quick` or `paper`.
        dtype: the type of the products in training: that of autocast, or float32.
        rank: the number of this process among those of `torch.distributed` that train the model together; 0 if there
            is one.
        all_reduce: the sum of a tensor over the ranks; the tensor itself where there is one rank. All ranks have to
            call it, in the same order.
        train_images: images of an epoch; 0 where nobody said.
        micro_batches: parts into which a batch is split; a new batch size is a multiple of them.
        others: the trials that the method's `depends_on` names, by that name; same task, network, recipe and seed.
        rehearsal: a command is checked before its first trial, on a copy of the model; nothing will be trained.
        inference_flops: counts one image's inference by the network that a `ReconfigPlan` would leave.
        memory_estimate: bytes of a training step with a `ReconfigPlan` carried out, measured on a copy of the model:
            parameters, gradients, optimizer state, and what a batch of that size keeps for backward.
        hardware_id: returns the short name of the hardware that the trial computes on, as its record has it; what is
            measured on one kind of machine is kept under this name.
        untimed: a context manager for preparation that a later trial may find done, such as measuring which kernel is
            fastest: what runs inside is counted as compilation, not as training.
    """

    model: nn.Module
    layers: dict[str, Layer]
    spaces: IndexSpaces
    num_classes: int
    seed: int
    device: torch.device
    task: str
    network: str
    preset: str
    epochs: int
    batch_size: int
    dtype: torch.dtype = torch.float32
    train_images: int = 0
    micro_batches: int = 1
    others: Mapping[str, OtherTrial] = field(default_factory=dict)
    rehearsal: bool = False
    optimizer: torch.optim.Optimizer | None = None
    rank: int = 0
    step: int = 0
    epochs_done: int = 0
    batch_index: int = 0
    progress: float = 0.0
    task_loss: Tensor | None = None
    all_reduce: Callable[[Tensor], Tensor] = lambda tensor: tensor
    memory_estimate: Callable[[ReconfigPlan], int] = lambda plan: 0
    inference_flops: Callable[[ReconfigPlan], float] = lambda plan: 0.0
    hardware_id: Callable[[], str] = lambda: ""
    untimed: Callable[[], AbstractContextManager[None]] = nullcontext

    def key(self, purpose: str) -> int:
        """A random key in 0 .. 2**63 - 1 for what a hook draws in this step; another for each purpose and rank.

        As with `Site.key`, nothing has to be saved for a resumed trial to draw the same.
        """
        return random_key(self.seed, self.step, self.rank, "hook", purpose)


@dataclass_transform(kw_only_default=True)
class Method:
    """Base class of every method; each hook's default does nothing.

    Class attributes that are no parameters (annotate them as `ClassVar`):
        version: goes into the trial's hash; raise it when the method's results change.
        source: the paper or code the method follows, for `describe` and the report.
        replayable: whether what runs between the batch and its gradients (the plans' transforms and `regularization`)
            may be captured once and replayed by the device, without Python (`recipe.execution=cuda_graph`). Then it
            asks the site for `kernel_seed` and never for its step, reads no value back from the device, and has shapes
            that do not depend on values; and no hook moves a parameter to other memory. All other hooks run as ever.
    """

    registered_name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    source: ClassVar[str] = ""
    replayable: ClassVar[bool] = False

    plan_version = 0  # no parameter; a method that plans anew assigns a new number to self.plan_version

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)

    def __new__(cls, **values: Any) -> Self:
        """Check the values of parameters against their declared types and bounds.

        Raises:
            ValueError: One line with the parameter, its value and the allowed values.
        """
        check(cls, values)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check parameters against each other; override it and call `super().__post_init__()` first.

        Raises:
            ValueError: One line that says which parameters do not fit together.
        """

    @classmethod
    def defaults(cls, task: str, preset: str) -> dict[str, Any]:
        """Values of parameters that depend on the task or preset; what is typed wins over them."""
        return {}

    def depends_on(self) -> tuple[str, ...]:
        """Methods, as one types them, whose trials of the same task, network, recipe and seed come before this one's.

        What became of them stands in `ctx.others`.
        """
        return ()

    def files(self) -> Mapping[str, str]:
        """Parameters whose values name files that decide the result, with these paths.

        What is in the files goes into the trial's hash, and not where they lie.
        """
        return {}

    def setup(self, ctx: Context) -> None:
        """Once, on the bare model on its device; before optimizer, compilation and DDP.

        It also runs before the first trial of a command, on a copy of the model on the CPU, to see that method, model
        and task fit (`suite.command.rehearsal`). There `ctx.others` is empty, while `ctx.device` is that of the
        training. What needs another trial belongs into `begin`; what takes long is left out where
        `ctx.rehearsal` says so.

        Raises:
            ValueError: one line that says why the method cannot train this model; or a `UsageError`.
        """

    def begin(self, ctx: Context) -> Sequence[ReconfigPlan]:
        """After `setup`, in a trial alone: changes of the network before it is trained.

        Here `ctx.others` is filled. What is counted as dense is the network before.
        """
        return ()

    def plan(self, name: str, layer: Layer) -> OpPlan | None:
        """One layer's arithmetic; after `setup`, when `plan_version` changes, after reconfigurations and on resume."""
        return None

    def transform_batch(self, images: Tensor, labels: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Change a batch. Labels are class indices (N,) int64 or, afterwards, probabilities (N, classes)."""
        return images, labels

    def regularization(self, model: nn.Module, ctx: Context) -> Tensor | None:
        """A scalar added to the loss, once a step."""
        return None

    def before_optimizer_step(self, ctx: Context) -> _SkipStep | None:
        """Gradients are global and finite: mask, accumulate saliency, change topology; or return `SKIP_STEP`."""
        return None

    def after_optimizer_step(self, ctx: Context) -> None:
        """Project weights and optimizer state."""

    def on_epoch_end(self, ctx: Context) -> None:
        """May change weights, for example set those under a threshold to zero."""

    def reconfigure(self, ctx: Context) -> ReconfigPlan | None:
        """Decide what goes. The trainer carries it out on the model, the optimizer and everything else."""
        return None

    def on_reconfigured(self, index_map: IndexMap, ctx: Context) -> None:
        """Renumber what the method remembers of the model's tensors; also called when a resumed trial replays."""

    def density(self, name: str, step: int) -> Density:
        """What the operands of the step that is running would let a kernel skip; feeds the *effective* FLOPs alone.

        Asked for with the gradients of step `step` computed and none of the hooks after them called: a mask that those
        change belongs to the next step.
        """
        return Density()

    def overhead(self, name: str, samples: int) -> float:
        """Arithmetic operations that the method itself spends on this layer in one step of `samples` images."""
        return 0.0

    def record(self, ctx: Context) -> Mapping[str, Any]:
        """What should be remembered of the epoch that has ended: plain data, which `epochs.jsonl` holds as `method`.

        After the reconfiguration; no number in it is infinite or NaN.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed trial needs: tensors, numbers, strings, and lists and dicts of them."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
