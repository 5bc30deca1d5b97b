"""Calls of a method's hooks on a model, for the trainer; `own_loop` adds what a loop of one's own needs.

A method may ask what the network would cost that a reconfiguration leaves: it is measured and counted on a copy.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from suite.engine.cost.clock import NO_CLOCK, NoClock, StepClock
from suite.engine.cost.flops import count_model
from suite.engine.cost.hardware import hardware_id
from suite.engine.cost.memory import StepMemory, measure_step, size_of
from suite.engine.cost.torch_hardware import arithmetic_in_use, hardware_facts
from suite.engine.network.branches import ScaledBranches
from suite.engine.network.channels.ignored import ignored_modules, leave_out
from suite.engine.network.channels.spaces import find_index_spaces, in_a_line
from suite.engine.network.channels.surgery import apply_plan
from suite.engine.network.channels.trial_cut import (
    counted_reasons,
    freeze_what_fails,
    warn_of_frozen_channels,
)
from suite.engine.network.forward_pass import copied, first_parameter, survey
from suite.engine.network.layers import convert, keep_nested_tensors_off, plannable, refuse_computed
from suite.engine.network.normalisation import freeze
from suite.engine.network.planned_layer import PlannedLayer, StepState, without_plans
from suite.engine.training.averages import bare, check_copy, share_plans, silence_masked
from suite.engine.training.optimizer_state import (
    Optimizers,
    refuse_missing_parameters,
    refuse_twice,
    refuse_uncut_state,
)
from suite.engine.training.ranks import Ranks, WrapperGuard, refuse_wrapped
from suite.errors import UsageError
from suite.index_spaces import IndexSpaces
from suite.method import EMPTY_PLAN, SKIP_STEP, Context, IndexMap, Method, OpPlan, ReconfigPlan
from suite.plan import Keys
from suite.recipe import FLUSH

log = logging.getLogger(__name__)


class MethodRunner:
    """Plans the layers of a bare model by a method, and calls the method's hooks.

    The constructor converts the layers, runs `setup` and `begin`, and plans the layers.

    If `torch.distributed` is initialised, every rank creates this object with the same arguments and calls the same
    hooks. All ranks get rank 0's model, random masks differ by rank, and the method sees the mean of the losses.

    Args:
        method: The method, with its parameters.
        ctx: The context, with the model on its device and in its memory format. The model is converted in place, and
            what the context does not have yet is filled in: layers, ranks and functions. In a rehearsal nothing will be
            trained: the trials that the method depends on may be missing, `begin` does not run, and the layers are
            planned only if the method does not define `begin`.
        train_size: Height and width of the first training images, if they differ from those of `ctx.input_shape`.

    Attributes:
        ctx: The context that the hooks get.
        reconfigurations: Plans that were carried out on the model, in order.
        averages: Copies of the model, such as an average of its weights, that are cut and masked in the same way:
            modules with the names of the model's tensors, or wrappers of them (`torch.optim.swa_utils.AveragedModel`).
        frozen_norms: Layers of batch normalisation that keep their statistics, because their training has ended.
        clock: Times the parts of the running step while steps are profiled (`timed_by`).
        not_planned: Convolution, linear, bilinear and recurrent layers that are not in `ctx.layers`, with the reason;
            also those that the method ignores.

    Raises:
        UsageError: if the model is wrapped, the ranks get different arguments, or the method cannot train the model.
    """

    def __init__(self, method: Method, ctx: Context, train_size: int | None = None) -> None:
        refuse_wrapped(ctx.model)
        self.method, self.ctx, self.model = method, ctx, ctx.model
        self.reconfigurations: list[ReconfigPlan] = []
        self.averages: list[nn.Module] = []
        self.clock: StepClock | NoClock = NO_CLOCK
        self.plans_made, self._replan_requested = 0, False
        self._warned_of_subnormals = False
        self._largest_batch = 0  # of this rank, in the running epoch
        self._branches = ScaledBranches() if method.defines("branch_factors") else None
        self._checked_state = False  # whether the optimizers' state was seen after a step
        self._cuts = removes_channels(method)
        self._image_size = train_size
        self.frozen_norms: list[_BatchNorm] = []
        self._join_ranks()
        self._find_layers()
        self._run_first_hooks()
        self.begun_with = len(self.reconfigurations)

    def _join_ranks(self) -> None:
        """Ensure that all ranks start from the same method, sizes and weights."""
        ctx, method = self.ctx, self.method
        self.ranks = Ranks.of_this_process()
        parameters = {one.name: getattr(method, one.name) for one in dataclasses.fields(method)}
        sizes = (ctx.seed, ctx.epochs, ctx.batch_size, ctx.micro_batches)
        self.ranks.agree("the method, seed and sizes", (type(method).__name__, parameters, *sizes))
        self.ranks.share(self.model)
        self._guard = WrapperGuard(self.model) if self.ranks.size > 1 else None
        self._first_micro_batch = self.ranks.rank * ctx.micro_batches
        self._step_state = StepState(seed=ctx.seed, micro_batch_index=self._first_micro_batch)
        ctx.rank, ctx.ranks = self.ranks.rank, self.ranks.size
        ctx.all_reduce, ctx.from_first_rank = self.ranks.all_reduce, self.ranks.from_first

    def _find_layers(self) -> None:
        """Find and convert the layers. Index spaces are found when they are first read."""
        ctx, model, input_shape = self.ctx, self.model, self.ctx.input_shape
        try:
            self._uses = survey(model, input_shape)
        except (TypeError, ValueError, RuntimeError, LookupError, AttributeError, AssertionError) as error:
            raise UsageError(
                f"{type(model).__name__} fails for zeros {(2, *input_shape)}: {in_a_line(error)}; its forward has to "
                "take one tensor, (N, *input_shape): check input_shape, wrap one that takes a dict, or give "
                "other arguments defaults"
            ) from error
        ignored = ignored_modules(model, self.method.ignore) if self.method.ignore else {}
        layers, self.not_planned = plannable(model, self._uses.called - ignored.keys())
        self.not_planned |= {name: ignored[name] for name in self.not_planned if name in ignored}
        for name, reason in self.not_planned.items():
            if name not in ignored:
                log.warning("layer '%s' cannot be planned and is not in ctx.layers: %s", name, reason)
        ctx.device = torch.device(ctx.device or first_parameter(model).device)
        self._estimates = Estimates(ctx, self.ranks)
        ctx.memory_estimate, ctx.inference_flops = self._estimates.memory, self._estimates.inference_flops
        ctx.hardware_id = lambda: hardware_id(hardware_facts(ctx.device))
        ctx.replan = self._request_plans
        ctx.layers = dict(convert(model, self._step_state, layers.keys()))
        ctx.find_spaces = partial(self._find_spaces, ignored)
        if self._cuts:
            warn_of_frozen_channels(ctx.spaces, self.method, ignored.values())

    def _find_spaces(self, ignored: Mapping[str, str]) -> IndexSpaces:
        """Find the index spaces, with the sizes of layers for the training images of the present phase."""
        ctx, model = self.ctx, self.model
        with ctx.untimed(), without_plans(self.planned_layers):
            spaces = find_index_spaces(model, ctx.input_shape)
            leave_out(spaces, ignored)
            if self.method.defines("begin", "reconfigure"):
                freeze_what_fails(model, spaces, ctx.input_shape)
        # Enter the sizes of layers that run only in training, which the trace does not contain.
        for name, layer in ctx.layers.items():
            spaces.enter_sizes(name, layer, *self._uses.shapes[name])
        self._replace_sizes(spaces)
        return spaces

    def enter_image_size(self, side: int | None) -> None:
        """Set the sizes of layers in the index spaces to those for training images of another size.

        Methods read these sizes, for example to count their own operations.

        Args:
            side: Height and width of the images; `None` leaves the sizes as they are.
        """
        if side is not None and side != self._image_size:
            self._image_size = side
            if "spaces" in vars(self.ctx):
                self._replace_sizes(self.ctx.spaces)

    def _replace_sizes(self, spaces: IndexSpaces) -> None:
        if (side := self._image_size) is not None:
            shape = (self.ctx.input_shape[0], side, side)
            spaces.replace_sizes(self.ctx.layers, survey(self.model, shape).shapes)

    def _run_first_hooks(self) -> None:
        """Run `setup` and `begin`, and plan the layers."""
        ctx, method = self.ctx, self.method
        for name in () if ctx.rehearsal else method.depends_on():
            if name not in ctx.others:
                raise UsageError(f"{type(method).__name__} depends on a trial of '{name}'; pass its result in others=")
        try:
            method.setup(ctx)
        except ValueError as error:
            if not self.not_planned:
                raise
            reasons = counted_reasons(f"'{name}' is not planned: {reason}" for name, reason in self.not_planned.items())
            raise ValueError(f"{error} ({'; '.join(reasons)})") from error
        for first in () if ctx.rehearsal else method.begin(ctx):
            if (first.frozen, first.batch_size, first.lr_scale, first.restart) != ((), None, None, False):
                raise ValueError(f"{type(method).__name__}.begin may change only the network")
            self._keep_layers(apply_plan(self.model, first, ctx.spaces, None))
            self.reconfigurations.append(first)
        if not ctx.rehearsal or not method.defines("begin"):
            self._plan_all()

    @property
    def planned_layers(self) -> list[PlannedLayer]:
        """The planned layers, in the model's order."""
        return list(self.ctx.layers.values())  # type: ignore[arg-type]

    @contextmanager
    def drawing_from(self, keys: Keys) -> Iterator[None]:
        """Let the transforms that run inside read their random keys from `keys`, while a step is captured."""
        self._step_state.keys = keys
        try:
            yield
        finally:
            self._step_state.keys = None

    @contextmanager
    def timed_by(self, clock: StepClock) -> Iterator[None]:
        """Let a clock time the parts of the steps that run inside."""
        self.clock = self._step_state.clock = clock
        try:
            yield
        finally:
            self.clock, self._step_state.clock = NO_CLOCK, None

    def attach(self, *optimizers: torch.optim.Optimizer, averages: Iterable[nn.Module] = ()) -> None:
        """Set the optimizers of the model's parameters, in the place of those of an earlier call.

        Args:
            optimizers: One or several. `optimizer_step` runs them in this order, and `ctx.optimizer` acts for all.
            averages: Copies of the model to add to `averages`.

        Raises:
            UsageError: if the method reconfigures the network and the state of an optimizer cannot be cut with it, or a
                trained parameter that can be cut is in none of them, or in two; if a parameter of an earlier call is
                in none of them; or if an average is no copy of the model.
        """
        for one in optimizers:
            if not isinstance(one, torch.optim.Optimizer):
                raise UsageError(
                    f"attach takes optimizers, one after the other, as in hooks.attach(first, second); not a "
                    f"{type(one).__name__}"
                )
        if not optimizers:
            raise UsageError("attach needs at least one optimizer: hooks.attach(optimizer)")
        refuse_wrapped(self.model)  # it may have been sharded since
        for name, layer in self.ctx.layers.items():
            refuse_computed(name, layer)
        optimizer = optimizers[0] if len(optimizers) == 1 else Optimizers(optimizers)
        if self._cuts:
            for one in optimizers:
                refuse_uncut_state(self.method, one)
        self._refuse_missing_parameters(optimizer)
        refuse_twice(optimizers)
        new = [one for one in averages if not any(one is known for known in self.averages)]
        for average in new:
            check_copy(average, self.model)
            self.ranks.share(average)  # a copy from before `apply` has this rank's own weights
        before, self.ctx.optimizer = self.ctx.optimizer, optimizer  # type: ignore[assignment]  # it acts like one
        try:
            self.method.on_attached(self.ctx)
        except Exception:
            self.ctx.optimizer = before
            raise
        self.averages += new
        self._share_plans()

    def _refuse_missing_parameters(self, optimizer: torch.optim.Optimizer | Optimizers) -> None:
        spaces = self.ctx.spaces.values() if self._cuts else ()
        cuttable = {part.tensor for space in spaces if not space.frozen for part in space.slices}
        refuse_missing_parameters(self.method, self.model, optimizer, self.ctx.optimizer, cuttable)

    def transform_batch(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Begin a step: scale residual branches, and return the batch that the method makes of a batch."""
        self._largest_batch = max(self._largest_batch, len(images))
        for norm in self.frozen_norms:
            norm.eval()
        with self.clock.span("pruning"):
            self._scale_branches()
            return self.method.transform_batch(images, labels, self.ctx)

    def _scale_branches(self) -> None:
        if self._branches is not None:
            factors = self.method.branch_factors(self.ctx)
            self.ctx.left_out = self._branches.scale(self.model, self.ctx.spaces, factors)

    def _restore_branches(self) -> None:
        if self._branches is not None:
            self._branches.restore()

    @contextmanager
    def whole_network(self) -> Iterator[None]:
        """Let all residual branches of the running step compute as usual inside the context."""
        self._restore_branches()
        yield
        self._scale_branches()

    def begin_micro_batch(self, micro_batch: int, micro_batches: int) -> None:
        """Set the micro-batch that the transforms see; needed only if a batch has several."""
        self._step_state.micro_batch_index = self.ctx.rank * micro_batches + micro_batch

    def term_of_step(self, task_loss: Tensor) -> Tensor | None:
        """Return the method's term for a step with the loss `task_loss` on this rank, or `None`, as often as asked."""
        self.ctx.task_loss = self.ranks.mean(task_loss.detach())
        with torch.autocast(self.ctx.device.type, enabled=False), self.clock.span("pruning"):
            return self.method.regularization(self.model, self.ctx)

    def optimizer_step(self, step: Callable[[], Any] | None = None) -> bool:
        """Run the optimizers and the two hooks around them. Gradients must be complete and finite.

        Args:
            step: Function that runs the optimizers; if `None`, each of them runs.

        Returns:
            Whether the optimizers ran.
        """
        if self.ctx.optimizer is None:
            raise UsageError("no optimizer is attached; call hooks.attach(optimizer) before hooks.optimizer_step()")
        with self.clock.span("pruning"):
            runs = self.method.before_optimizer_step(self.ctx) is not SKIP_STEP
            if runs:
                with self.clock.span("optimizer"):
                    (step or self.ctx.optimizer.step)()
                if self._cuts and not self._checked_state:
                    self._checked_state = True
                    self._refuse_uncut_state()
            self.method.after_optimizer_step(self.ctx)
            self.end_step()
        return runs

    def end_step(self) -> None:
        """Count the step, even if the optimizer did not run, and plan the layers if a hook asked for it."""
        self._restore_branches()
        self.ctx.left_out = frozenset()
        self.ctx.step += 1
        self.ctx.batch_index += 1
        self._step_state.step = self.ctx.step
        self._step_state.micro_batch_index = self._first_micro_batch
        self._plan_if_requested()

    def end_epoch(self) -> IndexMap | None:
        """Run `on_epoch_end` and `reconfigure`, and carry out the plan; return its index map, if there is a plan."""
        self.ctx.progress = min(1.0, (self.ctx.epochs_done + 1) / self.ctx.epochs)
        plan = self.plan_epoch_end()
        index_map = None if plan is None else self.apply_plan(plan)
        for average in self.averages:
            silence_masked(bare(average, self.model), self.ctx.layers)
        return index_map

    def plan_epoch_end(self) -> ReconfigPlan | None:
        """Run `on_epoch_end`, and return the plan of `reconfigure` without carrying it out."""
        self.ctx.epochs_done += 1
        self.ctx.batch_index = 0
        self.method.on_epoch_end(self.ctx)
        plan = self.method.reconfigure(self.ctx)
        if frozen := tuple(self.method.freeze(self.ctx)):
            plan = dataclasses.replace(plan or ReconfigPlan(), frozen=frozen)
        if self.method.defines("reconfigure", "freeze"):
            self.ranks.agree("the reconfiguration", None if plan is None else plan.to_json())
        self._plan_if_requested()
        self._warn_of_another_batch()
        self._warn_of_subnormals()
        return plan

    def _refuse_uncut_state(self) -> None:
        for one in getattr(self.ctx.optimizer, "parts", [self.ctx.optimizer]):
            refuse_uncut_state(self.method, one)

    def apply_plan(self, plan: ReconfigPlan) -> IndexMap:
        """Change model and optimizer, let the method cut its own tensors, and plan the layers."""
        if self.ctx.optimizer is not None and self._cuts:
            self._refuse_uncut_state()  # some optimizers create state after their first step
            self._refuse_missing_parameters(self.ctx.optimizer)  # a layer may have been unfrozen since
        index_map = self._replay(plan)
        self._plan_all()
        return index_map

    def replay(self, plans: list[ReconfigPlan]) -> None:
        """Carry out a resumed trial's reconfigurations on the new model, before `load_state_dict`.

        The first of them are those of `begin`, which the constructor carried out.

        Raises:
            UsageError: if `begin` returned other plans now than when the trial started.
        """
        begun = len(self.reconfigurations)
        if [plan.to_json() for plan in plans[:begun]] != [plan.to_json() for plan in self.reconfigurations]:
            raise UsageError("the trial began with another network; a trial that it depends on was run again since")
        for plan in plans[begun:]:
            self._replay(plan)

    def finish(self) -> None:
        """Set W = weight_forward(W) in every layer and remove all plans, so that the model needs no method.

        Parameters that the method has frozen can be trained again.
        """
        averages = [bare(average, self.model) for average in self.averages]
        with torch.no_grad():
            for model in (self.model, *averages):
                for layer in model.modules():
                    if isinstance(layer, PlannedLayer) and layer.masked:
                        layer.weight.copy_(layer.forward_weight(layer.weight))
        for average in averages:
            silence_masked(average, self.ctx.layers)
        frozen = {name for plan in self.reconfigurations for name in plan.frozen}
        for name, parameter in self.model.named_parameters():
            if name in frozen:
                parameter.requires_grad_(True)  # a loop may go on to tune the network
        self.empty_plans()

    def empty_plans(self) -> None:
        """Remove the plans of all layers."""
        for layer in self.planned_layers:
            layer.op_plan = EMPTY_PLAN
        self._share_plans()

    def state_dict(self) -> dict[str, Any]:
        """Return the method's state and the counters that its random numbers depend on."""
        ctx = self.ctx
        return {
            "method": self.method.state_dict(),
            "step": ctx.step,
            "epochs_done": ctx.epochs_done,
            "batch_size": ctx.batch_size,
            "progress": ctx.progress,
            "batch_index": ctx.batch_index,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, after `replay` and after the model's own state, and plan the layers."""
        self.method.load_state_dict(state["method"])
        self.ctx.step = self._step_state.step = state["step"]
        self.ctx.epochs_done, self.ctx.batch_size = state["epochs_done"], state["batch_size"]
        self.ctx.progress, self.ctx.batch_index = state["progress"], state["batch_index"]
        self._plan_all()

    def choose_again(self) -> None:
        """Let the method measure again what it chose by measurement, for a machine or threads that differ."""
        self.method.choose_again(self.ctx)
        self._plan_all()

    def _replay(self, plan: ReconfigPlan) -> IndexMap:
        extra = [bare(average, self.model) for average in self.averages]
        index_map = IndexMap({}, frozenset())
        if plan.kept or plan.removed_branches or plan.gated:
            index_map = apply_plan(self.model, plan, self.ctx.spaces, self.ctx.optimizer, extra)
            if self._guard:
                self._guard.shapes_changed()
        self.reconfigurations.append(plan)
        self.frozen_norms += freeze(self.model, plan.frozen)
        self._keep_layers(index_map)
        if plan.batch_size is not None:
            self.ctx.batch_size = plan.batch_size
        self.method.on_reconfigured(index_map, self.ctx)
        return index_map

    def _keep_layers(self, index_map: IndexMap) -> None:
        """Remove the layers from the context that a reconfiguration removed."""
        self.ctx.layers = {name: layer for name, layer in self.ctx.layers.items() if index_map.exists(name)}
        self._estimates.network_changed()

    def _warn_of_another_batch(self) -> None:
        """Warn if an epoch's batches were smaller than the last reconfiguration asked for."""
        share, self._largest_batch = self._largest_batch, 0
        if all(plan.batch_size is None for plan in self.reconfigurations):
            return
        # The ranks' shares of a batch may differ by an image, and a batch may be an epoch.
        images = int(self.ranks.all_reduce(torch.tensor(share, device=self.ctx.device), "bookkeeping"))
        if 0 < images < min(asked := self.ctx.batch_size, self.ctx.train_images or self.ctx.batch_size):
            log.warning(
                f"epoch {self.ctx.epochs_done} was trained with batches of {images} images, but the method asked for "
                f"{asked}: the loop must follow hooks.ctx.batch_size and hooks.reconfigurations[-1].lr_scale"
            )

    def _warn_of_subnormals(self) -> None:
        """Warn once if the arithmetic of this process makes a product with a subnormal weight slow."""
        if self._warned_of_subnormals or self.ctx.device.type != "cpu" or arithmetic_in_use() == FLUSH:
            return
        name = next((name for name, one in self.model.named_parameters() if has_subnormal(one)), None)
        if name is not None:
            self._warned_of_subnormals = True
            log.warning(
                f"{name} has subnormal values, with which some processors are 20 times slower: call "
                "torch.set_flush_denormal(True) at the beginning of the program"
            )

    def _plan_if_requested(self) -> None:
        if self._replan_requested:
            self._plan_all()

    def _request_plans(self) -> None:
        self._replan_requested = True

    def _plan_all(self) -> None:
        self._replan_requested = False
        self.plans_made += 1
        _plan_layers(self.method, self.ctx, self._uses.readers)
        self._share_plans()

    def _share_plans(self) -> None:
        """Let the averages follow the plans of the model's layers, so that a forward of theirs is masked alike."""
        for average in self.averages:
            share_plans(bare(average, self.model), self.ctx.layers)


def removes_channels(method: Method) -> bool:
    """Return whether a method may remove channels: it says so, reconfigures, or begins with another trial's result."""
    kind = type(method)
    begins = kind.defines("begin") and bool(method.depends_on())
    return kind.shrinks_network or kind.defines("reconfigure") or begins


def has_subnormal(values: Tensor) -> bool:
    """Return whether a tensor on the CPU has a subnormal value, in either arithmetic; false for half precision."""
    kind = {torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}.get(values.dtype)
    if kind is None:
        return False
    magnitudes = values.detach().view(kind) & torch.iinfo(kind).max
    smallest = torch.tensor(torch.finfo(values.dtype).smallest_normal, dtype=values.dtype).view(kind)
    return bool(((magnitudes > 0) & (magnitudes < smallest)).any())


def _plan_layers(method: Method, ctx: Context, readers: Mapping[str, frozenset[str]]) -> None:
    """Give every layer of `ctx.layers` the plan that the method returns for it.

    Args:
        method: The method.
        ctx: Its context.
        readers: For each layer whose weight is read outside its own forward, the modules that read it.

    Raises:
        UsageError: if `plan` returns something else than an `OpPlan`, or plans a layer whose weight the model also
            reads where no plan is followed.
    """
    for name, layer in ctx.layers.items():
        plan = method.plan(name, layer)
        if not isinstance(plan, OpPlan | None):
            raise UsageError(
                f"{type(method).__name__}.plan returned a {type(plan).__name__} for '{name}', not an OpPlan"
            )
        layer.op_plan = plan or EMPTY_PLAN
        if not layer.op_plan.empty:
            _refuse_other_readers(method, name, layer.op_plan, readers.get(name, frozenset()), ctx)
    keep_nested_tensors_off(ctx.model)


def _refuse_other_readers(method: Method, name: str, plan: OpPlan, readers: frozenset[str], ctx: Context) -> None:
    """Refuse a plan for a layer whose weight is also read outside the layer."""
    if plan.weight_forward is None and plan.backend is None:
        # Two layers that share a weight can each follow a plan for their gradients.
        readers -= ctx.layers.keys()
    if readers:
        whose = " and ".join(f"'{reader}'" if reader else "the model's own forward" for reader in sorted(readers))
        raise UsageError(
            f"{type(method).__name__} plans layer '{name}', whose weight is also read by {whose}, which does not "
            "follow the plan; call the layer itself there, give it its own weight, or return no plan for it"
        )


class Estimates:
    """Answers what a method asks before it decides on a reconfiguration (`ctx.memory_estimate`, `ctx.inference_flops`).

    Args:
        ctx: Context of the method; its model is copied and stays unchanged.
        ranks: Processes that train the model together.
    """

    def __init__(self, ctx: Context, ranks: Ranks) -> None:
        self._ctx, self._ranks, self._input_shape = ctx, ranks, ctx.input_shape
        self._measured: tuple[Any, float, StepMemory] | None = None

    def network_changed(self) -> None:
        """Discard measurements, because the model was reconfigured."""
        self._measured = None

    def memory(self, plan: ReconfigPlan) -> int:
        """Return the bytes of a training step after `plan`.

        They comprise parameters, gradients, buffers, optimizer state (as much per parameter as now), and what a
        micro-batch keeps for backward.
        """
        ctx = self._ctx
        cut = (plan.kept, plan.removed_branches, plan.gated)
        # The same network with another batch size needs no new measurement.
        if self._measured is None or self._measured[0] != cut:
            model = self._cut_copy(plan)
            before, after = (size_of(one.parameters()) for one in (ctx.model, model))
            states = [] if ctx.optimizer is None else [*ctx.optimizer.state.values()]
            held = size_of(value for state in states for value in state.values() if isinstance(value, Tensor))
            fixed = after * (2 + held / before) + size_of(model.buffers())
            devices = [ctx.device] if ctx.device.type == "cuda" else []
            with torch.random.fork_rng(devices):  # dropout draws random numbers
                images = self._images_at_once(ctx.batch_size)
                self._measured = cut, fixed, measure_step(model, self._input_shape, ctx.dtype, images)
        _, fixed, step = self._measured
        found = fixed + step.of(self._images_at_once(plan.batch_size or ctx.batch_size))
        # Devices measure slightly different values, but all ranks must make the same decision.
        return int(self._ranks.mean(torch.tensor(found, dtype=torch.float64, device=ctx.device)))

    def inference_flops(self, plan: ReconfigPlan) -> float:
        """Return the FLOPs of one image's inference after `plan`."""
        return float(count_model(self._cut_copy(plan), self._input_shape)["inference_flops"])

    def _images_at_once(self, batch_size: int) -> int:
        """Return the number of images in a micro-batch on one rank."""
        return -(-batch_size // (self._ctx.micro_batches * self._ranks.size))

    def _cut_copy(self, plan: ReconfigPlan) -> nn.Module:
        """Return a copy of the model after `plan`."""
        model, spaces = copied(self._ctx.model), copy.deepcopy(self._ctx.spaces)
        cut = ReconfigPlan(kept=plan.kept, removed_branches=plan.removed_branches, gated=plan.gated)
        apply_plan(model, cut, spaces, None)
        return model
