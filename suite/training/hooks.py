"""A method at work on a model: every hook of the contract, at its place, for the trainer and for loops of one's own."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from suite.cost.flops import count_model
from suite.cost.hardware import hardware_facts, hardware_id
from suite.cost.memory import StepMemory, measure_step
from suite.errors import UsageError
from suite.method import EMPTY_PLAN, SKIP_STEP, Context, IndexMap, Method, OpPlan, OtherTrial, ReconfigPlan
from suite.network.channels.spaces import find_index_spaces
from suite.network.channels.surgery import apply_plan
from suite.network.forward_pass import first_parameter, survey
from suite.network.layers import convert, keep_nested_tensors_off, plannable
from suite.network.planned_layer import PlannedLayer, StepState
from suite.plan import Keys
from suite.training.optimizer_state import why_not_cut
from suite.training.ranks import Ranks, WrapperGuard
from suite.training.trial_cut import freeze_what_fails

log = logging.getLogger(__name__)


class Hooks:
    """Plans a bare model by a method and calls the method's hooks.

    Construction runs `setup`, converts the layers and plans them. A loop of one's own then calls, in this order:

        hooks.attach(optimizer)
        for each epoch:
            for each batch:
                images, labels = hooks.transform_batch(images, labels)
                loss = criterion(model(images), labels)
                hooks.add_regularization(loss).backward()
                hooks.optimizer_step()
                optimizer.zero_grad()
            hooks.end_epoch()
        hooks.finish()

    Where `torch.distributed` is initialised, every rank makes this object, with the same arguments, and calls the same
    hooks: rank 0's model becomes that of all, random masks differ by rank, and the method sees the mean of the losses.

    Args:
        model: the bare model, on its device and in its memory format; converted in place.
        method: the method, with its parameters.
        input_shape: (C, H, W) of one image.
        num_classes, epochs, batch_size, seed, task, network, preset, train_images, micro_batches, others: what the
            context tells the method.
        dtype: the type of autocast in training; `torch.float32` for none.
        device: of the training, if it is not that of the model: a command is checked on the CPU.
        rehearsal: nothing will be trained: `setup` runs and the layers are converted, but what the method depends on
            need not be there, and `begin` does not run. Layers are planned where `begin` is the base class's.

    Raises:
        UsageError: if the model is wrapped already, or the ranks of `torch.distributed` are given different arguments.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        *,
        input_shape: tuple[int, int, int],
        num_classes: int,
        epochs: int,
        batch_size: int,
        seed: int = 0,
        task: str = "",
        network: str = "",
        preset: str = "",
        train_images: int = 0,
        micro_batches: int = 1,
        others: Mapping[str, OtherTrial] | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        rehearsal: bool = False,
    ) -> None:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            raise UsageError(
                "the model is wrapped in DistributedDataParallel; apply the method first, then wrap the model"
            )
        self.model, self.method = model, method
        self.ranks = Ranks.of_this_process()
        # The base class itself, a method with nothing in it, is no dataclass.
        names: list[str] = [one.name for one in dataclasses.fields(method)] if dataclasses.is_dataclass(method) else []
        parameters = {name: getattr(method, name) for name in names}
        sizes = (seed, epochs, batch_size, micro_batches)
        self.ranks.agree("the method, seed and sizes", (type(method).__name__, parameters, *sizes))
        self.ranks.share(model)
        self._guard = WrapperGuard(model) if self.ranks.size > 1 else None
        self.input_shape, self.dtype = input_shape, dtype
        self.reconfigurations: list[ReconfigPlan] = []
        self.plans_made = 0  # how many times the layers were planned
        self._replan_asked = False
        self._measured: tuple[Any, float, StepMemory] | None = None
        self._largest_batch = 0  # images of this rank, in the epoch that runs
        self._first_slot = self.ranks.rank * micro_batches
        self._step_state = StepState(seed=seed, slot=self._first_slot)
        self._uses = survey(model, input_shape)
        _, self.not_planned = plannable(model, self._uses.called)
        for name, reason in self.not_planned.items():
            log.warning("layer '%s' is not planned and is in no method's ctx.layers: %s", name, reason)
        self.ctx = Context(
            model=model,
            layers={},
            spaces=find_index_spaces(model, input_shape),
            num_classes=num_classes,
            seed=seed,
            device=device or first_parameter(model).device,
            task=task,
            network=network,
            preset=preset,
            epochs=epochs,
            batch_size=batch_size,
            dtype=dtype,
            train_images=train_images,
            micro_batches=micro_batches,
            others=others or {},
            rehearsal=rehearsal,
            rank=self.ranks.rank,
            all_reduce=self.ranks.all_reduce,
            memory_estimate=self._memory_estimate,
            inference_flops=self._inference_flops,
            hardware_id=lambda: hardware_id(hardware_facts(self.ctx.device)),
            replan=self._ask_for_plans,
        )
        for name in () if rehearsal else method.depends_on():
            if name not in self.ctx.others:
                raise UsageError(f"{type(method).__name__} depends on a trial of '{name}', which others= has to name")
        self._cuts = any(getattr(type(method), hook) is not getattr(Method, hook) for hook in ("begin", "reconfigure"))
        if self._cuts:
            freeze_what_fails(model, self.ctx.spaces, input_shape)
            self._say_what_is_frozen()
        self.ctx.layers = dict(convert(model, self._step_state, self._uses.called))
        for name in self.ctx.layers:  # what runs in training alone has a size too
            given, output = self._uses.shapes[name]
            self.ctx.spaces.positions.setdefault(name, output[2:].numel())
            self.ctx.spaces.input_sizes.setdefault(name, tuple(given[2:]))
        method.setup(self.ctx)
        for first in () if rehearsal else method.begin(self.ctx):
            if (first.batch_size, first.lr_scale, first.restart) != (None, None, False):
                raise ValueError(f"{type(method).__name__}.begin changes more than the network")
            self._keep_layers(apply_plan(model, first, self.ctx.spaces, None))
            self.reconfigurations.append(first)
        if not rehearsal or type(method).begin is Method.begin:
            self._plan_all()

    @property
    def planned_layers(self) -> list[PlannedLayer]:
        """The layers that there are, in the model's order."""
        return list(self.ctx.layers.values())  # type: ignore[arg-type]

    @contextmanager
    def drawing_from(self, keys: Keys) -> Iterator[None]:
        """Give the transforms that run inside `keys` in place of numbers: the step is captured to be replayed."""
        self._step_state.keys = keys
        try:
            yield
        finally:
            self._step_state.keys = None

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Name the optimizer of the model's parameters.

        Raises:
            UsageError: if the method reconfigures the network, and the optimizer's state cannot be cut with it.
        """
        self._refuse_uncut_state(optimizer)
        self.ctx.optimizer = optimizer

    def transform_batch(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self._largest_batch = max(self._largest_batch, len(images))
        return self.method.transform_batch(images, labels, self.ctx)

    def begin_micro_batch(self, micro_batch: int, micro_batches: int) -> None:
        """Tell the transforms which micro-batch comes; needed where there is more than one."""
        self._step_state.slot = self.ctx.rank * micro_batches + micro_batch

    def regularization(self, task_loss: Tensor) -> Tensor | None:
        """The method's term for this step, computed without autocast.

        Args:
            task_loss: this rank's loss of the step without the term; the method sees the mean over all ranks.
        """
        self.ctx.task_loss = self.ranks.mean(task_loss.detach())
        with torch.autocast(self.ctx.device.type, enabled=False):
            return self.method.regularization(self.model, self.ctx)

    def add_regularization(self, loss: Tensor) -> Tensor:
        """The loss with the method's term."""
        term = self.regularization(loss)
        return loss if term is None else loss + term

    def optimizer_step(self, step: Callable[[], Any] | None = None) -> bool:
        """Run the two hooks around the optimizer's step; gradients are global and finite.

        Args:
            step: runs the optimizer; its own `step` if `None`.

        Returns:
            Whether the optimizer ran.
        """
        assert self.ctx.optimizer is not None, "attach(optimizer) comes first"
        runs = self.method.before_optimizer_step(self.ctx) is not SKIP_STEP
        if runs:
            (step or self.ctx.optimizer.step)()
            if self.ctx.step == 0:
                self._refuse_uncut_state(self.ctx.optimizer)
        self.method.after_optimizer_step(self.ctx)
        self.end_step()
        return runs

    def end_step(self) -> None:
        """Count the step, also one that was left out, and plan anew where the method asks for it."""
        self.ctx.step += 1
        self.ctx.batch_index += 1
        self._step_state.step = self.ctx.step
        self._step_state.slot = self._first_slot
        self._plan_where_asked()

    def end_epoch(self) -> IndexMap | None:
        """`on_epoch_end`, then the reconfiguration that the method decides on, carried out."""
        self.ctx.progress = min(1.0, (self.ctx.epochs_done + 1) / self.ctx.epochs)
        plan = self.close_epoch()
        return None if plan is None else self.carry_out(plan)

    def close_epoch(self) -> ReconfigPlan | None:
        """`on_epoch_end`, and the method's decision; not carried out yet."""
        self.ctx.epochs_done += 1
        self.ctx.batch_index = 0
        self.method.on_epoch_end(self.ctx)
        plan = self.method.reconfigure(self.ctx)
        if self._cuts:
            self.ranks.agree("the reconfiguration", None if plan is None else plan.to_json())
        self._plan_where_asked()
        self._warn_of_another_batch()
        return plan

    def carry_out(self, plan: ReconfigPlan) -> IndexMap:
        """Change model and optimizer, let the method renumber what it remembers, and plan the layers anew."""
        index_map = self._replay(plan)
        self._plan_all()
        return index_map

    def replay(self, plans: list[ReconfigPlan]) -> None:
        """Carry out a resumed trial's reconfigurations on the fresh model; `load_state_dict` comes after.

        Those of `begin`, which were carried out when this object was made, come first among them.

        Raises:
            UsageError: if these are others now.
        """
        begun = len(self.reconfigurations)
        if [plan.to_json() for plan in plans[:begun]] != [plan.to_json() for plan in self.reconfigurations]:
            raise UsageError("the trial began with another network than this one; a trial it depends on was run again")
        for plan in plans[begun:]:
            self._replay(plan)

    def finish(self) -> None:
        """W <- weight_forward(W) in every layer, then empty plans: the model stands without the method."""
        with torch.no_grad():
            for layer in self.planned_layers:
                if layer.masked:
                    layer.weight.copy_(layer.forward_weight(layer.weight))
        self.empty_plans()

    def empty_plans(self) -> None:
        """Leave every layer torch's own."""
        for layer in self.planned_layers:
            layer.op_plan = EMPTY_PLAN

    def state_dict(self) -> dict[str, Any]:
        """The method's state and the counters that key its random numbers."""
        ctx = self.ctx
        return {
            "method": self.method.state_dict(),
            "step": ctx.step,
            "epochs_done": ctx.epochs_done,
            "batch_size": ctx.batch_size,
            "progress": ctx.progress,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back `state_dict`, after `replay` and after the model's own state; then every layer is planned."""
        self.method.load_state_dict(state["method"])
        self.ctx.step = self._step_state.step = state["step"]
        self.ctx.epochs_done, self.ctx.batch_size = state["epochs_done"], state["batch_size"]
        self.ctx.progress = state["progress"]
        self._plan_all()

    def _replay(self, plan: ReconfigPlan) -> IndexMap:
        index_map = apply_plan(self.model, plan, self.ctx.spaces, self.ctx.optimizer)
        self.reconfigurations.append(plan)
        if self._guard and (plan.kept or plan.removed_branches or plan.gated):
            self._guard.shapes_changed()
        self._keep_layers(index_map)
        if plan.batch_size is not None:
            self.ctx.batch_size = plan.batch_size
        self.method.on_reconfigured(index_map, self.ctx)
        return index_map

    def _keep_layers(self, index_map: IndexMap) -> None:
        """Drop the layers that a reconfiguration removed."""
        self.ctx.layers = {name: layer for name, layer in self.ctx.layers.items() if index_map.exists(name)}

    def _say_what_is_frozen(self) -> None:
        """Warn of channels that cannot be cut although they are neither the model's input nor its output."""
        spaces = self.ctx.spaces
        for name, space in spaces.items():
            if space.frozen and name != spaces.model_input and name not in spaces.model_outputs:
                log.warning("no channel of '%s' can be cut: %s", name, space.frozen_because)

    def _refuse_uncut_state(self, optimizer: torch.optim.Optimizer) -> None:
        if self._cuts and (reason := why_not_cut(optimizer)):
            raise UsageError(
                f"{type(self.method).__name__} reconfigures the network, and the state of {type(optimizer).__name__} "
                f"cannot be cut with it: {reason}; take SGD, Adam or another whose state has each parameter's shape"
            )

    def _warn_of_another_batch(self) -> None:
        """Say that an epoch's batches were smaller than the last reconfiguration asked for."""
        asked = any(plan.batch_size is not None for plan in self.reconfigurations)
        images, self._largest_batch = self._largest_batch * self.ranks.size, 0
        if asked and 0 < images < self.ctx.batch_size:
            log.warning(
                "epoch %d was trained with batches of %d images where the method had asked for %d: the loop has to "
                "take hooks.ctx.batch_size images a batch, and to follow hooks.reconfigurations[-1].lr_scale",
                self.ctx.epochs_done,
                images,
                self.ctx.batch_size,
            )

    def _plan_where_asked(self) -> None:
        if self._replan_asked:
            self._plan_all()

    def _ask_for_plans(self) -> None:
        self._replan_asked = True

    def _plan_all(self) -> None:
        self._replan_asked = False
        self.plans_made += 1
        planned = self.ctx.layers
        for name, layer in planned.items():
            assert isinstance(layer, PlannedLayer)
            plan = self.method.plan(name, layer)
            if not isinstance(plan, OpPlan | None):
                raise UsageError(
                    f"{type(self.method).__name__}.plan returned a {type(plan).__name__} for '{name}', not an OpPlan"
                )
            layer.op_plan = plan or EMPTY_PLAN
            if not layer.op_plan.empty:
                self._check_readers(name, layer.op_plan)
        keep_nested_tensors_off(self.model)

    def _check_readers(self, name: str, plan: OpPlan) -> None:
        """Refuse a plan for a layer whose weight the model also reads where no plan is followed.

        Raises:
            UsageError: that names the layer and who reads its weight.
        """
        readers = self._uses.readers.get(name, frozenset())
        if plan.weight_forward is None and plan.backend is None:
            # Two layers that share a weight follow a plan of their gradients each.
            readers -= self.ctx.layers.keys()
        if readers:
            whose = " and ".join(f"'{reader}'" if reader else "the model's own forward" for reader in sorted(readers))
            raise UsageError(
                f"{type(self.method).__name__} plans layer '{name}', whose weight is also read by {whose}, past the "
                "plan; call the layer itself there, give it a weight of its own, or leave it out of the plan"
            )

    def _memory_estimate(self, plan: ReconfigPlan) -> int:
        """Bytes of a training step with `plan` carried out: measured on a copy of the model that it was carried out on.

        Parameters, gradients, buffers and optimizer state (as much a parameter as there is now), and what a
        micro-batch takes.
        """
        cut = (len(self.reconfigurations), plan.kept, plan.removed_branches, plan.gated)
        if self._measured is None or self._measured[0] != cut:  # another batch of one network needs no new measurement
            model = self._cut_copy(plan)
            before, after = (_bytes(one.parameters()) for one in (self.model, model))
            states = [] if self.ctx.optimizer is None else [*self.ctx.optimizer.state.values()]
            held = _bytes(value for state in states for value in state.values() if isinstance(value, Tensor))
            fixed = after * (2 + held / before) + _bytes(model.buffers())
            devices = [self.ctx.device] if self.ctx.device.type == "cuda" else []
            with torch.random.fork_rng(devices):  # dropout draws
                images = self._images_at_once(self.ctx.batch_size)
                self._measured = cut, fixed, measure_step(model, self.input_shape, self.dtype, images)
        _, fixed, step = self._measured
        found = fixed + step.of(self._images_at_once(plan.batch_size or self.ctx.batch_size))
        # Devices measure a little differently, and all ranks have to decide alike.
        return int(self.ranks.mean(torch.tensor(found, dtype=torch.float64, device=self.ctx.device)))

    def _images_at_once(self, batch_size: int) -> int:
        """Images of a micro-batch on one rank."""
        return -(-batch_size // (self.ctx.micro_batches * self.ranks.size))

    def _inference_flops(self, plan: ReconfigPlan) -> float:
        """FLOPs of one image's inference by the network that `plan` would leave; counted on a copy."""
        return float(count_model(self._cut_copy(plan), self.input_shape)["inference_flops"])

    def _cut_copy(self, plan: ReconfigPlan) -> nn.Module:
        """A copy of the model with a plan carried out on it."""
        model, spaces = copy.deepcopy(self.model), copy.deepcopy(self.ctx.spaces)
        cut = ReconfigPlan(kept=plan.kept, removed_branches=plan.removed_branches, gated=plan.gated)
        apply_plan(model, cut, spaces, None)
        return model


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
