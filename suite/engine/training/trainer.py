"""The training loop. It calls the hooks of the contract, in the order of `suite.method`, and knows no method.

A phase is a run of epochs with images of another size than those of an evaluation, or with frozen parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from suite.engine.cost.clock import Clock
from suite.engine.cost.flops import LayerCost, count, count_layers
from suite.engine.cost.ledger import Ledger, phase_of_state
from suite.engine.cost.memory import SavedTensors
from suite.engine.network.layers import backend_name
from suite.engine.network.model_files import weights_checksum
from suite.engine.network.normalisation import estimate_statistics, with_running_statistics
from suite.engine.training.cuda_graph import GraphStep
from suite.engine.training.data_parallel import Batch
from suite.engine.training.evaluation import Evaluation
from suite.engine.training.execution import check_execution
from suite.engine.training.method_runner import MethodRunner
from suite.engine.training.mixing import BatchMixing
from suite.engine.training.optimizer_state import make_optimizer
from suite.engine.training.product_check import ProductCheck
from suite.engine.training.ranks import Ranks
from suite.engine.training.records import Diverged, EpochLosses, Progress, Record, StepRecord
from suite.engine.training.steps import CompiledStep, EagerStep, Outcome
from suite.engine.training.weight_average import Lookahead, WeightAverage
from suite.errors import UsageError, nearest
from suite.method import Context, Method, OtherTrial, ReconfigPlan
from suite.recipe import Phase, Recipe
from suite.task import Batches, Splits

STEPS = {"eager": EagerStep, "compile": CompiledStep, "cuda_graph": GraphStep}
"""The class that computes the gradients of a step, by the recipe's `execution`."""


class Trainer:
    """Trains one model by one method and one recipe.

    Args:
        model: The bare model, on `device`, in channels-last memory format.
        method: The method, with its parameters.
        recipe: The recipe.
        splits: The data, on `device`.
        input_shape, num_classes: (C, H, W) of one image of the task, and the number of its classes.
        seed: Seed of the trial.
        device: Device of the training.
        dtype: `torch.float32`, or the type of autocast: `torch.bfloat16`, or `torch.float16` with a loss scale.
        task, network, preset, others: Values of these attributes of the context.
        on_trained: Function that receives the method `state_dict` after each epoch's steps, before a reconfiguration.
        on_epoch: Function that receives the record of each epoch, before the checkpoint.
        on_checkpoint: Function that receives the method `state_dict` after each epoch.
        on_step: Function that receives the share of the training that is done, in [0, 1], after each step.

    Raises:
        UsageError: if the recipe's execution is not possible on this device or for this method, if `recipe.freeze`
            names no trained parameter, if `recipe.precise_bn` finds no statistics, or if a batch has fewer images than
            there are ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        recipe: Recipe,
        splits: Splits,
        *,
        input_shape: tuple[int, int, int],
        num_classes: int,
        seed: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        task: str = "",
        network: str = "",
        preset: str = "",
        others: Mapping[str, OtherTrial] | None = None,
        on_trained: Callable[[Callable[[], dict[str, Any]]], None] = lambda state: None,
        on_epoch: Callable[[Record], None] = lambda record: None,
        on_checkpoint: Callable[[Callable[[], dict[str, Any]]], None] = lambda state: None,
        on_step: Callable[[float], None] = lambda share: None,
    ) -> None:
        if recipe.execution != "eager":
            check_execution(recipe.execution, device.type, type(method), processes=Ranks.of_this_process().size)
        if recipe.precise_bn and not with_running_statistics(model):
            raise UsageError("recipe.precise_bn needs a network with batch normalisation and running statistics")
        self.model, self.recipe, self.splits, self.device, self.dtype = model, recipe, splits, device, dtype
        self.on_trained, self.on_epoch, self.on_checkpoint, self.on_step = on_trained, on_epoch, on_checkpoint, on_step
        self.clock = Clock(device)
        self.progress = Progress()
        self.initial_weights = weights_checksum(model)  # before the method changes them
        self.dense_params = sum(parameter.numel() for parameter in model.parameters())
        # This, too, has to come before the method changes the network.
        counts, trained = count(model, input_shape), _trained(model)
        self.not_counted = counts.not_counted
        check_names(recipe.freeze, model)
        built = layers_by_phase(model, recipe, input_shape)
        self.ctx = Context(
            model,
            input_shape,
            num_classes=num_classes,
            epochs=recipe.whole_epochs,
            batch_size=recipe.batch_size,
            seed=seed,
            task=task,
            network=network,
            preset=preset,
            train_images=splits.train.num_samples,
            micro_batches=recipe.micro_batches,
            others=others or {},
            dtype=dtype,
        )
        self.runner = MethodRunner(method, self.ctx, recipe.growing.size_at(0.0))
        self.ctx.untimed = lambda: self.clock.span("compile")  # so that no reported time includes what hooks prepare
        self.optimizer = make_optimizer(model, recipe)
        self.runner.attach(self.optimizer)
        self.average = WeightAverage(self.runner, recipe.averaging.ema) if recipe.averaging.ema else None
        if recipe.averaging.lookahead_steps:
            self.average = Lookahead(self.runner, recipe, splits.train.steps_per_epoch(recipe.batch_size))
        mixes = recipe.augmentation.mixup or recipe.augmentation.cutmix
        self.mixing = BatchMixing(recipe.augmentation, num_classes, seed) if mixes else None
        self.scaler = torch.amp.GradScaler(device.type) if dtype == torch.float16 else None
        self.step = STEPS[recipe.execution](self.runner, recipe, dtype, self.scaler)
        self.parallel = self.step.parallel
        self.evaluation = Evaluation(self.parallel, model, recipe.evaluation, device, dtype)
        now = counts.layers if not self.runner.reconfigurations and _trained(model) == trained else None
        self.ledger = Ledger(self.ctx, method, input_shape, counts.layers, now, built)
        self.products = ProductCheck(dtype, device)
        self.parallel.begin(seed, splits.train, recipe)

    def fit(self) -> None:
        """Train from the current epoch to the last.

        Raises:
            Diverged: if a loss is infinite or NaN, or no step of an epoch has finite gradients.
            WrongProduct: if a library returns an incorrect result for a product of a layer.
        """
        while self.epochs_left:
            self.begin_epoch()
            with self.clock.span("train"):
                if self.average:
                    self.average.begin_epoch()
                record = self.train_epoch()
                if self.average:
                    self.average.end_epoch()
            with self.clock.span("io"):
                self.on_trained(self.state_dict)
            reconfigured = self.finish_epoch()
            is_last = not self.epochs_left
            with self.clock.span("check"):
                self.parallel.check_states()
            if is_last or self.ctx.epochs_done % self.recipe.evaluation.eval_every == 0:
                averaged = self.average.evaluated() if self.average and not is_last else nullcontext()
                with self.clock.span("eval"), averaged:
                    record |= self.evaluation.record(self.splits, is_last)
                self.evaluation.check(record, self.ctx.epochs_done)
            self.progress.finished = is_last
            self._complete(record, reconfigured)
            self.on_epoch(record)
            with self.clock.span("io"):
                self.parallel.gather_random_states()
                self.on_checkpoint(self.state_dict)
        self.parallel.unwrap()

    def begin_epoch(self) -> None:
        """Prepare the next epoch: set its size of images and its frozen parameters, and check new products."""
        phase = self.recipe.phase_of(self.schedule_epoch)
        if phase != self.ledger.phase:
            if phase.frozen != self.ledger.phase.frozen:
                _freeze_named(self.model, self.recipe.freeze, phase.frozen)
                self.parallel.wrap()
            self.ledger.enter(phase, self.ctx.epochs_done)
            self.step.forget()
            self.progress.memory_is_counted = False
        self.runner.enter_image_size(phase.image_size)
        self._check_products()
        self.model.train()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def train_epoch(self) -> Record:
        """Run every step of one epoch, and return the first part of its record."""
        losses = EpochLosses()
        counted = self.ledger.counts()
        step_cost: Record = {}
        scale = self.scaler.get_scale() if self.scaler else None
        for batch in self.batches():
            step = self.train_step(batch)
            losses.add(step)
            if step.share == 1 or not step_cost:
                step_cost = self.ledger.step_cost()
        if losses.skipped == losses.steps and not self._scale_still_falls(scale):
            raise Diverged(f"no step of epoch {self.ctx.epochs_done + 1} had finite gradients")
        step_cost = self.parallel.add_counts(self.ledger, counted, step_cost)
        self.parallel.average_buffers()
        return {
            **losses.record(),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            **self.setting_of_step(),
            **step_cost,
            **({"loss_scale": self.scaler.get_scale()} if self.scaler else {}),
        }

    def batches(self) -> Iterator[Batch]:
        """Return this rank's share of each batch of the present epoch."""
        steps = self.recipe.steps_in(self.schedule_epoch, self.steps_per_epoch)
        shares = self.parallel.shares(self.split, self.ctx.epochs_done, self.ctx.batch_size, self.mixing)
        return islice(shares, steps)

    def train_step(self, batch: Batch) -> StepRecord:
        """Train with one batch: compute gradients, update the weights, call the method's hooks, and count the cost.

        Args:
            batch: This rank's share of a batch (`batches`) of the epoch that `begin_epoch` began.

        Raises:
            Diverged: The loss is infinite or NaN. The weights are then those before the step.
        """
        ctx, recipe, runner = self.ctx, self.recipe, self.runner
        whole = self.steps_per_epoch
        done, length = self.schedule_epoch + ctx.batch_index / whole, recipe.length(whole)
        ctx.progress = done / length
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.learning_rate_at(ctx.progress) * self.progress.lr_scale * group["lr_factor"]
        images, labels = runner.transform_batch(batch.images, batch.labels)
        if not self.step.is_ready(images, labels):
            with self.clock.span("compile"):
                self.step.prepare(images, labels)
        task_loss, term, norm = self._forward_backward(images, labels)
        share = batch.size / ctx.batch_size  # below 1 in a last, smaller batch
        step = StepRecord(task_loss, term, share, updated=norm is not None)
        step.check(f"epoch {ctx.epochs_done + 1}, step {ctx.step + 1}")
        # Count FLOPs before a hook changes the masks that the step used.
        self.ledger.add_step(self.parallel.own(images))
        if norm is not None:  # otherwise a gradient is infinite or NaN, and the update is skipped
            if recipe.clip_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), recipe.clip_norm, norm)
            if runner.optimizer_step() and self.average:
                with runner.clock.span("optimizer"):
                    self.average.update((done + 1 / whole) / length)
        else:
            runner.end_step()
        if self.scaler:
            self.scaler.update()
        with runner.clock.span("optimizer"):
            self.optimizer.zero_grad(set_to_none=True)
        self.ledger.add_overhead(self.parallel.own(images))
        self.progress.samples += batch.size
        self.on_step((done + 1 / whole) / length)
        return step

    def gradients(self, images: Tensor, labels: Tensor, saved: SavedTensors | None = None) -> Outcome:
        """Compute the gradients of this rank's share of a batch, and return its loss and the method's term."""
        return self.step.gradients(images, labels, saved)

    def setting_of_step(self) -> Record:
        """Return the settings on which the cost of a step depends, besides its counted operations."""
        return {
            "batch_size": self.ctx.batch_size,
            "backends": {name: backend_name(layer) for name, layer in self.ctx.layers.items()},
            **({"frozen": True} if self.ledger.phase.frozen else {}),
        }

    def _forward_backward(self, images: Tensor, labels: Tensor) -> tuple[float, float, Tensor | None]:
        """Compute the gradients of one step, and return the task's loss, the method's term and the gradients' norm.

        The norm is `None` if it is infinite or NaN. One read of all three synchronises the device only once. The
        gradients are already divided by the loss scale.
        """
        saved = None if self.progress.memory_is_counted or self.device.type == "cuda" else SavedTensors(self.model)
        with self.parallel.statistics_of_own_images():
            task_loss, term = self.gradients(images, labels, saved)
        if saved:
            size = self.average.bytes if self.average else 0
            self.progress.note_counted_memory(saved, self.model, self.optimizer, self.recipe, size)
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        values = [value.double() for value in (task_loss, norm, term) if value is not None]
        numbers = torch.stack(values).tolist()
        return numbers[0], numbers[2] if term is not None else 0.0, norm if math.isfinite(numbers[1]) else None

    def _scale_still_falls(self, before: float | None) -> bool:
        """Return whether gradients may still become finite. The loss scale starts high and halves until they are."""
        return self.scaler is not None and before is not None and 1 <= self.scaler.get_scale() < before

    def finish_epoch(self) -> bool:
        """Do what follows the last step of an epoch, and return whether the network was reconfigured.

        After the last epoch, what is left is the final model, without the method.
        """
        plan = self.end_epoch()
        if plan is not None:
            self.apply_plan(plan)
        if not self.epochs_left:
            if self.average:
                self.average.finish()
            self.runner.finish()
            if self.recipe.precise_bn:
                self.estimate_statistics()
        return plan is not None

    def end_epoch(self) -> ReconfigPlan | None:
        """Run the method's hooks at the end of an epoch; return its plan, if there is one, for `apply_plan`."""
        if self.device.type == "cuda":
            self.progress.note_memory(self.step.peak_memory())
        whole = self.steps_per_epoch
        done = self.schedule_epoch + self.recipe.steps_in(self.schedule_epoch, whole) / whole
        self.ctx.progress = done / self.recipe.length(whole)
        with self.clock.span("reconfigure"):
            return self.runner.plan_epoch_end()

    def estimate_statistics(self) -> None:
        """Estimate the statistics of batch normalisation from `recipe.precise_bn` images, and count the passes."""
        counted = self.ledger.counts()
        with self.clock.span("reconfigure"):
            with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
                estimate_statistics(self.model, self._images_for_statistics(), self.runner.frozen_norms)
            self.parallel.add_counts(self.ledger, counted, self.ledger.step_cost())
            self.parallel.average_buffers()

    def _images_for_statistics(self) -> Iterator[Tensor]:
        """Yield this rank's micro-batches of the next epoch. A smaller last batch would have too much weight."""
        ctx, whole = self.ctx, min(self.ctx.batch_size, self.split.num_samples)
        batches = self.parallel.epoch(self.split, ctx.epochs_done, ctx.batch_size)
        for images, _, size in islice(batches, math.ceil(self.recipe.precise_bn / ctx.batch_size)):
            if size == whole:
                self.ledger.add_forward(len(images))
                yield from images.tensor_split(min(self.recipe.micro_batches, len(images)))

    def apply_plan(self, plan: ReconfigPlan) -> None:
        """Change model, optimizer and schedule by the method's plan.

        Raises:
            ValueError: if the new batch size is not a multiple of the recipe's micro-batches.
        """
        parts = self.recipe.micro_batches
        if plan.batch_size is not None and plan.batch_size % parts:
            raise ValueError(f"a batch of {plan.batch_size} images cannot be split into recipe.micro_batches={parts}")
        self.ledger.close_interval(self.ctx.epochs_done)
        with self.clock.span("reconfigure"):
            self.runner.apply_plan(plan)
            if plan.restart:
                self.optimizer.state.clear()
                self.progress.first_epoch = self.ctx.epochs_done
                if self.average:
                    self.average.begin_again()
            if plan.lr_scale is not None:
                self.progress.lr_scale = plan.lr_scale
            self.parallel.wrap()
        self.ledger.recount(self.ctx.epochs_done)
        self.step.forget()
        self.progress.memory_is_counted = False
        self._check_products()

    def _check_products(self) -> None:
        """Check the products of layers with a new geometry or backend, outside of the training time."""
        with self.clock.span("check"):
            self.products.check(self.ctx.layers, self.ledger.current, self.ledger.evaluated)

    @property
    def split(self) -> Batches:
        """Training images of the size of the present epoch."""
        return self.splits.training(self.ledger.phase.image_size)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a whole epoch with the present batch size."""
        return self.split.steps_per_epoch(self.ctx.batch_size)

    @property
    def schedule_epoch(self) -> int:
        """Epochs of the schedule that are done."""
        return self.ctx.epochs_done - self.progress.first_epoch

    @property
    def epochs_left(self) -> int:
        """Epochs of the schedule that are not done."""
        return self.recipe.whole_epochs - self.schedule_epoch

    def _complete(self, record: Record, reconfigured: bool) -> None:
        """Add counted and measured cost to an epoch's record, and keep the record for the checkpoint."""
        self.progress.best_accuracy = max(self.progress.best_accuracy, record.get("test_accuracy", 0.0))
        ledger = self.ledger
        record |= {
            "epoch": self.ctx.epochs_done,
            "epochs_left": self.epochs_left,
            **self.clock.columns(),
            "step_memory_bytes": self.progress.step_memory_bytes,
            "train_flops": dict(ledger.train_flops),
            "train_communication": dict(ledger.train_communication),
            **self.parallel.record(),
            "params": sum(parameter.numel() for parameter in self.model.parameters()),
            "inference_flops": ledger.inference_flops(),
            "layers": ledger.layer_records(),
            "reconfigured": reconfigured,
        }
        if extra := self.runner.method.record(self.ctx):
            record["method"] = dict(extra)
        self.progress.last_record = record

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed trial needs to continue bit for bit."""
        return {
            "reconfigurations": [plan.to_json() for plan in self.runner.reconfigurations],
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict() if self.average else None,
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "hooks": self.runner.state_dict(),
            "ledger": self.ledger.state_dict(),
            "clock": self.clock.state_dict(),
            "progress": vars(self.progress).copy(),
            **self.parallel.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`: carry out the reconfigurations, then load everything into the changed model.

        Optimizer and average stay as they are if the state has `None` for them, as at the end of a stage.
        """
        self.runner.replay([ReconfigPlan.from_json(plan) for plan in state["reconfigurations"]])
        self.model.load_state_dict(state["model"], strict=True)
        if state["optimizer"] is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        if self.average and state["average"] is not None:
            self.average.load_state_dict(state["average"])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])
        self.step.forget()
        self.runner.load_state_dict(state["hooks"])
        if phase_of_state(state["ledger"]).frozen:
            _freeze_named(self.model, self.recipe.freeze, True)
        self.ledger.load_state_dict(state["ledger"])
        self.clock.load_state_dict(state["clock"])
        self.progress = Progress(**state["progress"])
        if self.progress.finished:
            self.runner.empty_plans()  # the saved weights are final
        self.parallel.wrap()
        self.parallel.load_state_dict(state)


def _trained(model: nn.Module) -> list[bool]:
    """Return which parameters need gradients. Data gradients, and so FLOPs, depend on this."""
    return [parameter.requires_grad for parameter in model.parameters()]


def _freeze_named(model: nn.Module, names: Collection[str], frozen: bool) -> None:
    """Freeze parameters, or unfreeze them. A method may have removed some."""
    for name, parameter in model.named_parameters():
        if name in names:
            parameter.requires_grad_(not frozen)


def layers_by_phase(
    model: nn.Module, recipe: Recipe, input_shape: tuple[int, int, int]
) -> dict[Phase, dict[str, LayerCost]]:
    """Return the layers of a model as it was built, by phase, without the phase of an evaluation."""
    layers = {}
    for phase in {*recipe.phases()} - {Phase()}:
        side = phase.image_size
        _freeze_named(model, recipe.freeze, phase.frozen)
        layers[phase] = count_layers(model, input_shape if side is None else (input_shape[0], side, side))
    _freeze_named(model, recipe.freeze, False)
    return layers


def check_names(names: tuple[str, ...], model: nn.Module) -> None:
    """Check that a model has trained parameters with these names, none of which is a layer's weight.

    Raises:
        UsageError: No trained parameter has a name, or the parameter is a layer's weight.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name in names:
        if name not in trained:
            others = [other for other, parameter in trained.items() if parameter.ndim <= 1]
            raise UsageError(f"recipe.freeze names '{name}', which is no trained parameter{nearest(name, others)}")
        if trained[name].ndim > 1:
            raise UsageError(f"recipe.freeze names '{name}', the weights of a layer; only others can be frozen")
