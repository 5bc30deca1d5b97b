"""The contract between a method and the training loop: which hooks exist, when they run, and what they may change.

A layer's arithmetic is *planned*: `Method.plan` returns an `OpPlan` for each convolution and linear layer, with one
optional transform for each operand of the layer's three products. Everything else is a hook. In pseudo-code, a trial
is:

    method.setup(ctx)                                      # the model is on its device; there is no optimizer yet
    for plan in method.begin(ctx): carry out plan          # change the network before it is trained
    plan the layers: layer.op_plan = method.plan(name, layer) for each layer
    method.on_attached(ctx)                                # the optimizer exists
    for each epoch:
        for each step:
            multiply residual branches by method.branch_factors(ctx), and leave out those with 0, until the step ends
            images, labels = method.transform_batch(images, labels, ctx)
            for each micro-batch: forward, backward        # the transforms of the plans run here
            sum the gradients over the ranks               # those of method.kept_gradients(ctx)
            backward of method.regularization(model, ctx)  # its gradient is equal on all ranks
            count FLOPs                                    # method.density(name, ctx) of each layer
            if the gradients are finite:
                if method.before_optimizer_step(ctx) is not SKIP_STEP:
                    optimizer.step()
                method.after_optimizer_step(ctx)
            plan the layers again if a hook called ctx.replan()
            count overhead                                 # method.overhead(name, samples, ctx) of each layer
        method.on_epoch_end(ctx)
        if plan := method.reconfigure(ctx):
            carry out plan on model and optimizer
            method.on_reconfigured(index_map, ctx)         # cut the method's own tensors in the same way
            plan the layers again
        stop training the parameters that method.freeze(ctx) names
        after the last epoch: weight = weight_forward(weight), and all plans are removed
        evaluate the model, if the recipe does so after this epoch
        method.record(ctx)                                 # goes into epochs.jsonl
        save a checkpoint with method.state_dict()

A resumed trial runs `setup` and `begin` on the new model, carries out the saved reconfigurations (with
`on_reconfigured` for each), then calls `load_state_dict`, and plans the layers.

**Parameters and state.** The parameters of a method are its public class attributes with a type annotation. They become
keyword arguments of its constructor, can be set on the command line (`sdgp[n=2,m=4]`), and identify the trial:

    @register("method", "sdgp")
    class SDGP(Method):
        n: int = 2
        m: int = 4

The type of a parameter is `bool`, `int`, `float`, `str`, `Literal[...]`, a tuple of these, or one of them or `None`;
bounds are declared with it: `Annotated[float, Interval(ge=0, lt=1)]`, from the package `annotated_types`. Constants are
annotated with `ClassVar`. State (masks, scores, counters) is created in `setup`, as `self.masks = {}`, and
`state_dict` returns what a resumed trial needs of it. A class that breaks these rules is refused when it is defined.

`docs/add-a-method.md` has a complete example for each family of methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self, dataclass_transform

import torch
from torch import Tensor, nn

from suite.index_spaces import IndexSpaces
from suite.parameters import LISTED_LAST, check, check_class
from suite.plan import (
    EMPTY_PLAN,
    Backend,
    Compact,
    Compressed,
    Density,
    Geometry,
    Layer,
    Operand,
    OpPlan,
    SharedTransform,
    Site,
    Transform,
    random_key,
)
from suite.recipe import Recipe, Tuning
from suite.reconfiguration import SKIP_STEP, IndexMap, OtherTrial, ReconfigPlan, SkipStep

__all__ = [
    "EMPTY_PLAN", "SKIP_STEP", "Backend", "Compact", "Compressed", "Context", "Density", "Geometry", "IndexMap",
    "IndexSpaces", "Layer", "Method", "OpPlan", "Operand", "OtherTrial", "ReconfigPlan", "SharedTransform", "Site",
    "Transform",
]  # fmt: skip


@dataclass
class Context:
    """What a hook may read and use. There is one object per trial, which the trainer keeps up to date.

    Attributes:
        model: The bare model (not wrapped in DDP, not compiled).
        input_shape: (C, H, W) of one image, as in an evaluation.
        layers: The planned layers by name, in the model's order: every `nn.Conv2d` and `nn.Linear` (no subclasses)
            that the model calls in training or in evaluation, without those that `Method.ignore` names. Each is a
            `suite.plan.Layer` and has a `weight`. All hooks see the same layer objects; a layer that a reconfiguration
            removes is no longer listed.
        num_classes: Number of classes of the task.
        seed: Seed of the trial.
        device: Device of the training.
        task, network, preset: Registered names of task and model, and `smoke`, `quick` or `paper`; empty in a training
            loop that did not give them.
        epochs: Number of epochs of the training.
        batch_size: Global batch size, over all micro-batches and ranks.
        dtype: Number format of the products in training: the autocast type, or float32.
        train_images: Number of training images per epoch; 0 in a training loop that did not give it.
        micro_batches: Number of parts into which a batch is split. A new batch size must be a multiple of it.
        others: Results of the trials that `depends_on` names, by that name. Empty in a rehearsal.
        rehearsal: True while a command is checked before its first trial, on a copy of the model on the CPU: nothing
            will be trained, so `setup` should leave out what takes long (compiling kernels, reading files).
        optimizer: The optimizer; `None` in `setup` and `begin`. If a training loop attached several, an object with
            `param_groups`, `state`, `step` and `zero_grad` that acts for all of them, which its `parts` lists.
        rank, ranks: Index and number of the processes of `torch.distributed` that train the model together; or 0 and 1.
        step: Number of optimizer steps attempted since the trial began, so also the index of the running step.
        epochs_done: Number of finished epochs. It has its new value in all hooks at the end of an epoch.
        batch_index: Index of the running step in its epoch.
        left_out: Names of the modules that the running step does not compute: the residual branches with the factor 0
            (`Method.branch_factors`), and all modules in them. Empty between steps.
        progress: Share of the training that is done, in [0, 1]. Schedules should use this.
        task_loss: Loss of the step without the regularization term: mean over micro-batches and ranks, detached. In
            `regularization` it belongs to the running step. `None` before the first step of a process.
        find_spaces: Function that finds `spaces`.
        all_reduce: Function that returns the sum of a tensor over all ranks, which must all call it in the same order.
        from_first_rank: Function that returns rank 0's value, plain data and tensors, on all ranks; for decisions by
            measured times.
        memory_estimate: Function that returns the bytes of a training step after a `ReconfigPlan`, measured on a copy
            of the model: parameters, gradients, optimizer state, and what a batch keeps for backward.
        inference_flops: Function that returns the FLOPs of one image's inference after a `ReconfigPlan`.
        hardware_id: Function that returns the short name of the trial's hardware, under which measurements are stored.
        replan: Function that asks for new plans: `Method.plan` is called for every layer at the end of the running
            step or epoch. Call it when `plan` would return something else than before, for instance when a layer gets
            its first mask. A transform that reads the method's state, such as `self.masks[name]`, needs no new plan
            when that state changes. Calls in `record` and `state_dict` come too late for the epoch.
        untimed: Context manager for preparation whose result later trials find stored, such as autotuning. Time spent
            inside is recorded as compilation, not as training. Most methods do not need it.
    """

    model: nn.Module
    input_shape: tuple[int, int, int]
    num_classes: int
    epochs: int
    batch_size: int
    seed: int = 0
    device: torch.device = None  # type: ignore[assignment]  # that of the model, once the method runs
    task: str = ""
    network: str = ""
    preset: str = ""
    layers: dict[str, Layer] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    train_images: int = 0
    micro_batches: int = 1
    others: Mapping[str, OtherTrial] = field(default_factory=dict)
    rehearsal: bool = False
    optimizer: torch.optim.Optimizer | None = None
    rank: int = 0
    ranks: int = 1
    step: int = 0
    epochs_done: int = 0
    batch_index: int = 0
    left_out: frozenset[str] = frozenset()
    progress: float = 0.0
    task_loss: Tensor | None = None
    find_spaces: Callable[[], IndexSpaces] = lambda: IndexSpaces({})
    all_reduce: Callable[[Tensor], Tensor] = lambda tensor: tensor
    from_first_rank: Callable[[Any], Any] = lambda value: value
    memory_estimate: Callable[[ReconfigPlan], int] = lambda plan: 0
    inference_flops: Callable[[ReconfigPlan], float] = lambda plan: 0.0
    untimed: Callable[[], AbstractContextManager[None]] = nullcontext
    hardware_id: Callable[[], str] = lambda: ""
    replan: Callable[[], None] = lambda: None

    @cached_property
    def spaces(self) -> IndexSpaces:
        """The index spaces of the model: which dimensions of which tensors share channels (`suite.index_spaces`).

        `spaces.removable_branches` lists the residual branches that can be removed. The model is traced when the spaces
        are read for the first time.
        """
        return self.find_spaces()

    def key(self, purpose: str) -> int:
        """Return a random key in 0 .. 2**63 - 1 for this step, rank and purpose, to seed a generator in a hook.

        Like `Site.key`, it depends only on the trial's seed and on when it is asked for, so that a resumed trial draws
        the same numbers without any saved state.
        """
        return random_key(self.seed, self.step, self.rank, "hook", purpose)


@dataclass_transform(kw_only_default=True)
@dataclass(kw_only=True, eq=False, repr=False)
class Method:
    """Base class of all methods. Every hook has a default that does nothing: dense training is an empty method.

    Attributes:
        ignore: Layers that the method leaves out, by name pattern (`features.0.*`; the name of a module stands for all
            that it contains): they have no plan and no mask, and keep their channels.

    Class variables, which are not parameters (annotate them with `ClassVar`):
        version: Part of the trial's id. Increase it when a training's bits or a declared default change by intention.
        source: The paper or code that the method follows, for `describe` and the report.
        replayable: Whether a step can be captured as a CUDA graph and replayed without Python
            (`recipe.execution=cuda_graph`). Transforms and `regularization` must then use `site.kernel_seed` and not
            the step number, read no values from the device, and have shapes that do not depend on values; no hook may
            move a parameter to other memory. All other hooks run as usual.
        shrinks_network: Whether a trial may end with a smaller network than it began with.
        prunes: Whether it prunes. A way to save training time without pruning, which methods must beat, is judged in a
            family of its own.
        random_twin: Parameters and values with which the method selects at random what it otherwise selects by a
            criterion: `{"mode": "random"}`. Empty if it has no such parameter.
        cpu_kernels: Sources in `kernels/cpu/sources` that it may call. Commands compile them before their first trial.
        tuning: How the defaults were chosen, and how many trials that cost, for `describe` and the report.
    """

    registered_name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    source: ClassVar[str] = ""
    replayable: ClassVar[bool] = False
    shrinks_network: ClassVar[bool] = False
    prunes: ClassVar[bool] = True
    random_twin: ClassVar[Mapping[str, Any]] = {}
    cpu_kernels: ClassVar[Sequence[str]] = ()
    tuning: ClassVar[Sequence[Tuning]] = ()

    ignore: tuple[str, ...] = field(default=(), metadata=LISTED_LAST)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        dataclass(kw_only=True, eq=False, repr=False)(cls)
        check_class(cls, Method)

    def __new__(cls, **values: Any) -> Self:
        """Check the values of parameters against their declared types and bounds (`ValueError`)."""
        check(cls, values)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check parameters against each other; override it and call `super().__post_init__()` first.

        Raises:
            ValueError: if parameters do not fit together; one line that names them and their values.
        """

    @classmethod
    def defaults(cls, task: str, preset: str) -> dict[str, Any]:
        """Return default values of parameters that depend on task or preset. Values set by the user win."""
        return {}

    @classmethod
    def defines(cls, *hooks: str) -> bool:
        """Return whether the method has one of these hooks of its own."""
        return any(getattr(cls, hook) is not getattr(Method, hook) for hook in hooks)

    def depends_on(self) -> tuple[str, ...]:
        """Return the methods, written as on the command line, whose trials this trial needs.

        These trials have the same task, model, recipe and seed and run first. `ctx.others` holds their results.
        """
        return ()

    def is_control(self) -> bool:
        """Return whether this is a control of other methods, of which a report claims nothing: here, a random twin."""
        return bool(self.random_twin) and all(getattr(self, name) == one for name, one in self.random_twin.items())

    def recipe_fields(self, recipe: Recipe, input_shape: tuple[int, int, int]) -> Mapping[str, Any]:
        """Return the fields of the recipe that the method sets in its own trials, with their values.

        They are part of the trial's id, like those that a user types. Dense training, with which a report compares the
        trial, keeps the values of `recipe`.

        Args:
            recipe: The recipe of the command, with the fields that were typed for this method.
            input_shape: (C, H, W) of one image of the task.
        """
        return {}

    def files(self) -> Mapping[str, str]:
        """Return the paths of files that decide the result, by the name of the parameter that names them.

        The content of these files becomes part of the trial's hash; their paths do not.
        """
        return {}

    def setup(self, ctx: Context) -> None:
        """Prepare the method: create its state, and refuse a model or task that it cannot train.

        Called once per process, before the optimizer is created; the model is on its device. A command also calls it
        once before its first trial, on a copy of the model on the CPU, to find out whether method, model and task fit.
        `ctx.rehearsal` is true then and `ctx.others` is empty: work that needs another trial belongs in `begin`.
        Weights may be set to zero here (masks from the first step on), but not changed in another way.

        Raises:
            ValueError: if the method cannot train this model; one line that says why.
        """

    def begin(self, ctx: Context) -> Sequence[ReconfigPlan]:
        """Return changes to the network that are carried out before training. `ctx.others` is filled.

        They may change only the network. The FLOPs of the network before these changes are reported as dense.
        """
        return ()

    def on_attached(self, ctx: Context) -> None:
        """Refuse an optimizer that cannot train by this method. `ctx.optimizer` exists; nothing is trained yet.

        Also called, with the recipe's optimizer, when a command is checked before its first trial.

        Raises:
            ValueError: if the method has no effect with this optimizer; one line that says why.
        """

    def plan(self, name: str, layer: Layer) -> OpPlan | None:
        """Return how the products of one layer are computed; `None` for torch's own products.

        Called for every layer after `setup`, after `ctx.replan()`, after a reconfiguration, and on resume after
        `load_state_dict`; not in every step. It must depend only on parameters and state, not on the values of weights:
        a resumed trial calls it at other times.
        """
        return None

    def branch_factors(self, ctx: Context) -> Mapping[str, float]:
        """Return factors by which the outputs of residual branches are multiplied in the coming step, by name.

        `ctx.spaces` lists the branches: `removable_branches` and `fixed_branches`. The factor of absent ones is 1. A
        branch with 0 is not computed, neither forward nor backward: its parameters get no gradient, so that the
        optimizer passes them over. Called at the beginning of a step. It must depend only on parameters, seed and step
        (`suite.plan.random_key`; not on the rank, as `ctx.key` does).
        """
        return {}

    def transform_batch(self, images: Tensor, labels: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return a changed batch, such as mixup's.

        `images` (N, C, H, W) and `labels` (N,) int64 are the whole batch of this rank, on the device. The returned
        labels may be probabilities, (N, classes), and so may the given ones, by `recipe.mixup` or `recipe.cutmix`. A
        rank that has no image of a last, small batch gets one image of zeros, which has no weight in the step.
        """
        return images, labels

    def regularization(self, model: nn.Module, ctx: Context) -> Tensor | None:
        """Return a scalar that is added to the loss once per step; `None` for no term. Autocast is off."""
        return None

    def before_optimizer_step(self, ctx: Context) -> SkipStep | None:
        """Read or change the gradients, which are complete and finite here, or return `SKIP_STEP`.

        The gradients (`parameter.grad`) are those of the whole batch over all ranks, after clipping.
        """
        return None

    def after_optimizer_step(self, ctx: Context) -> None:
        """Change weights and optimizer state after the step: apply masks, update a topology."""

    def on_epoch_end(self, ctx: Context) -> None:
        """Change weights at the end of an epoch, for example set those below a threshold to zero."""

    def reconfigure(self, ctx: Context) -> ReconfigPlan | None:
        """Return the channels and branches to remove, and a new batch size; `None` for no change.

        Called at the end of every epoch. The trainer carries the plan out on model and optimizer.
        """
        return None

    def freeze(self, ctx: Context) -> Sequence[str]:
        """Return the names of parameters that are not trained from the next epoch on, besides those frozen before.

        Called at the end of every epoch, after `reconfigure`. A frozen parameter has no gradient, weight decay or
        momentum, and the backward ends where no parameter below is trained. Batch normalisation whose trained
        parameters are all frozen keeps its running statistics, and normalises with them in training too.
        """
        return ()

    def on_reconfigured(self, index_map: IndexMap, ctx: Context) -> None:
        """Cut the method's own tensors after a reconfiguration: `mask = index_map(f"{name}.weight", mask)`.

        Also called when a resumed trial carries out its saved reconfigurations.
        """

    def density(self, name: str, ctx: Context) -> Density:
        """Return which share of each product's multiply-adds has two nonzero operands in the running step.

        It decides the *effective* FLOPs only. It is called in every step after the gradients are computed and before
        the hooks that follow, so the current masks are the ones that the step used; and once more after each epoch.

        A mask on the weights with a share d of ones makes the forward and the data gradient d dense. The weight
        gradient is d dense too if masked weights are set to zero in `after_optimizer_step`, since their gradients are
        not needed then; it is 1 in steps that use the gradients of masked weights, for example to grow connections.
        """
        return Density()

    def kept_gradients(self, ctx: Context) -> Mapping[str, Tensor]:
        """Return masks of the weight gradients that the method uses, by layer; all of them in layers that are absent.

        A mask is bool and has the weight's shape. Data-parallel training sums only these gradients over the ranks, and
        the others are zero then. It is called before every step: return stored tensors, which are equal on all ranks,
        and new ones only if the masks change. A method that reads gradients of masked weights must not override it.
        """
        return {}

    def overhead(self, name: str, samples: int, ctx: Context) -> float:
        """Return the arithmetic operations that the method spends on this layer in one step of `samples` images.

        It is called in every step after all hooks of the step.
        """
        return 0.0

    def record(self, ctx: Context) -> Mapping[str, Any]:
        """Return what `epochs.jsonl` should store as `method` for the finished epoch: plain data, finite numbers."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed trial needs: tensors, numbers, strings, and lists and dicts of these.

        A resumed trial must end with the same bits as an undisturbed one, so include masks, scores and counters.
        Called at the end of each epoch, before `on_epoch_end` and after a reconfiguration.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Tensors are on the device of the training."""

    def choose_again(self, ctx: Context) -> None:
        """Measure again what was chosen by measurement, such as backends; the layers are planned again afterwards.

        Called after `load_state_dict` by a time pass with another number of threads than the trial had.
        """
