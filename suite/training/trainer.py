"""The one training loop. It knows the hooks of the contract, and no method."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.cost.clock import Clock
from suite.cost.flops import Ledger, count, weight_density
from suite.cost.memory import SavedTensors, held_bytes
from suite.method import Method, OtherTrial, ReconfigPlan
from suite.network.layers import backend_name
from suite.recipe import Recipe
from suite.task import Batches, Splits
from suite.training.cuda_graph import GraphStep
from suite.training.execution import check_execution
from suite.training.hooks import Hooks
from suite.training.optimizer_state import SGD
from suite.training.product_check import ProductCheck
from suite.training.steps import CompiledStep, EagerStep

Record = dict[str, Any]


class Diverged(Exception):
    """The loss is no longer a number, or no step of an epoch had finite gradients."""


@dataclass
class Progress:
    """What the trainer itself remembers from epoch to epoch."""

    first_epoch: int = 0  # epochs done when the schedule began; not 0 after a restart
    lr_scale: float = 1.0
    samples: int = 0
    peak_memory_bytes: int = 0
    step_memory_bytes: int = 0  # of the network and batch that trained last
    memory_is_counted: bool = False  # on the CPU: of the network as it is
    best_accuracy: float = 0.0
    finished: bool = False
    last_record: Record = field(default_factory=dict)


class Trainer:
    """Trains one model by one method and one recipe.

    Args:
        model: the bare model, on `device`, in channels-last memory format.
        method: the method, with its parameters.
        recipe: how to train.
        splits: the data, on `device`.
        input_shape: (C, H, W).
        num_classes: of the task.
        seed: of the trial.
        device: where everything is.
        dtype: `torch.float32`; or `torch.bfloat16` or `torch.float16` for autocast, the latter with a loss scale.
        task, preset, others: what the context tells the method.
        on_epoch: receives each epoch's record, before the checkpoint.
        on_checkpoint: receives the state after each epoch.
        on_step: receives the share of the training that is done, in [0, 1].
        compile_backend: of `torch.compile`, where the recipe's execution is `compile`.

    Raises:
        UsageError: if the recipe's execution is not for this device or method.
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
        on_epoch: Callable[[Record], None] = lambda record: None,
        on_checkpoint: Callable[[Callable[[], dict[str, Any]]], None] = lambda state: None,
        on_step: Callable[[float], None] = lambda share: None,
        compile_backend: str = "inductor",
    ) -> None:
        check_execution(recipe.execution, device.type, type(method))
        self.model, self.recipe, self.splits, self.device, self.dtype = model, recipe, splits, device, dtype
        self.on_epoch, self.on_checkpoint, self.on_step = on_epoch, on_checkpoint, on_step
        self.clock = Clock(device)
        self.progress = Progress()
        self.dense_params = sum(parameter.numel() for parameter in model.parameters())
        counts = count(model, input_shape)  # before a method changes the network
        self.not_counted = counts.not_counted
        self.hooks = Hooks(
            model,
            method,
            input_shape=input_shape,
            num_classes=num_classes,
            epochs=recipe.epochs,
            batch_size=recipe.batch_size,
            seed=seed,
            task=task,
            network=network,
            preset=preset,
            train_images=splits.train.num_samples,
            micro_batches=recipe.micro_batches,
            others=others,
            dtype=dtype,
        )
        self.ctx = self.hooks.ctx
        self.ctx.untimed = lambda: self.clock.span("compile")
        self.optimizer = _optimizer(model, recipe)
        self.hooks.attach(self.optimizer)
        self.scaler = torch.amp.GradScaler(device.type) if dtype == torch.float16 else None
        self.step = _step(self.hooks, recipe, dtype, self.scaler, compile_backend)
        self.ledger = Ledger(self.ctx, method, input_shape, counts.layers)
        self.products = ProductCheck(dtype, device)

    def fit(self) -> None:
        """Train from where the trainer stands to the last epoch.

        Raises:
            Diverged: if the loss is no longer a number.
            WrongProduct: if a library computes a product of a layer wrong.
        """
        while self._epochs_left():
            self._check_products()
            with self.clock.span("train"):
                record = self.train_epoch()
            self.ctx.progress = (self.ctx.epochs_done + 1 - self.progress.first_epoch) / self.recipe.epochs
            with self.clock.span("reconfigure"):
                plan = self.hooks.close_epoch()
            if plan is not None:
                self._carry_out(plan)
            if not self._epochs_left():
                self.hooks.finish()
            with self.clock.span("eval"):
                record |= self._evaluate_splits()
            for name in ("test_loss", "val_loss"):
                if not math.isfinite(record.get(name, 0.0)):
                    raise Diverged(f"the {name} is {record[name]} after epoch {self.ctx.epochs_done}")
            self.progress.finished = not self._epochs_left()
            self._complete(record, reconfigured=plan is not None)
            self.on_epoch(record)
            with self.clock.span("io"):
                self.on_checkpoint(self.state_dict)

    def train_epoch(self) -> Record:
        """Every step of one epoch, in the order of `suite.method`."""
        ctx, recipe, hooks = self.ctx, self.recipe, self.hooks
        batches = self.splits.train
        steps = batches.steps_per_epoch(ctx.batch_size)
        loss_sum = term_sum = seen = 0.0
        skipped = 0
        step_flops: dict[str, float] = {}
        scale = self.scaler.get_scale() if self.scaler else None
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.model.train()
        for images, labels in batches.epoch(ctx.epochs_done, ctx.batch_size):
            done = ctx.epochs_done - self.progress.first_epoch + ctx.batch_index / steps
            ctx.progress = done / recipe.epochs
            for group in self.optimizer.param_groups:
                group["lr"] = recipe.learning_rate_at(ctx.progress) * self.progress.lr_scale
            images, labels = hooks.transform_batch(images, labels)
            if not self.step.is_ready(images, labels):
                with self.clock.span("compile"):
                    self.step.prepare(images, labels)
            task_loss, term, norm = self._forward_backward(images, labels)
            for name, value in (("loss", task_loss), ("regularization", term)):
                if not math.isfinite(value):
                    raise Diverged(f"the {name} is {value} in epoch {ctx.epochs_done + 1}, step {ctx.step + 1}")
            self.ledger.add_step(len(images))  # before a hook changes the masks that were multiplied with
            if norm is not None:
                self._clip(norm)
                hooks.optimizer_step()
                term_sum += term
            else:
                hooks.end_step()
                skipped += 1
            if self.scaler:
                self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
            share = len(images) / ctx.batch_size  # below 1 in a last, smaller batch
            loss_sum, seen = loss_sum + task_loss * share, seen + share
            if share == 1 or not step_flops:
                step_flops = dict(self.ledger.step_flops)
            self.ledger.add_overhead(len(images))
            self.progress.samples += len(images)
            self.on_step((done + 1 / steps) / recipe.epochs)
        if skipped == steps and not self._scale_still_falls(scale):
            raise Diverged(f"no step of epoch {ctx.epochs_done + 1} had finite gradients")
        if self.device.type == "cuda":
            self._note_memory(self.step.peak_memory())
        return {
            "train_loss": loss_sum / seen,
            "regularization": term_sum / max(steps - skipped, 1),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "batch_size": ctx.batch_size,
            "step_memory_bytes": self.progress.step_memory_bytes,
            "backends": {name: backend_name(layer) for name, layer in ctx.layers.items()},
            "steps": steps,
            "skipped_steps": skipped,
            "step_flops": step_flops,
            **({"loss_scale": self.scaler.get_scale()} if self.scaler else {}),
        }

    def _forward_backward(self, images: Tensor, labels: Tensor) -> tuple[float, float, Tensor | None]:
        """Gradients of one step into `.grad`; returns the task's loss, the method's term, and the gradients' norm.

        The norm is `None` if it is no number; it is looked at together with the losses, so that the device is waited
        for once. A loss scale is taken out of the gradients before.
        """
        saved = None if self.progress.memory_is_counted or self.device.type == "cuda" else SavedTensors(self.model)
        task_loss, term = self.step.gradients(images, labels, saved)
        if saved:
            self._note_counted_memory(saved)
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        values = [value.double() for value in (task_loss, norm, term) if value is not None]
        found = torch.stack(values).tolist()
        return found[0], found[2] if term is not None else 0.0, norm if math.isfinite(found[1]) else None

    def _clip(self, norm: Tensor) -> None:
        if self.recipe.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), self.recipe.clip_norm, norm)

    def _scale_still_falls(self, before: float | None) -> bool:
        """Whether gradients may become finite yet: a loss scale begins high and halves until they are."""
        return self.scaler is not None and before is not None and 1 <= self.scaler.get_scale() < before

    def _carry_out(self, plan: ReconfigPlan) -> None:
        """Change model, optimizer and schedule as the method decided.

        Raises:
            ValueError: if the new batch does not split into the recipe's micro-batches.
        """
        if plan.batch_size is not None and plan.batch_size % self.recipe.micro_batches:
            parts = self.recipe.micro_batches
            raise ValueError(f"a batch of {plan.batch_size} does not split into recipe.micro_batches={parts}")
        self.ledger.close_interval(self.ctx.epochs_done)
        with self.clock.span("reconfigure"):
            self.hooks.carry_out(plan)
            if plan.restart:
                self.optimizer.state.clear()
                self.progress.first_epoch = self.ctx.epochs_done
            if plan.lr_scale is not None:
                self.progress.lr_scale = plan.lr_scale
        self.ledger.recount(self.ctx.epochs_done)
        self.step.forget()
        self.progress.memory_is_counted = False
        self._check_products()

    def _check_products(self) -> None:
        """Check the products of layers whose geometry or backend is new, outside the time of training."""
        with self.clock.span("check"):
            self.products.check(self.ctx.layers, self.ledger.current)

    def _epochs_left(self) -> int:
        return self.recipe.epochs - (self.ctx.epochs_done - self.progress.first_epoch)

    def _evaluate_splits(self) -> Record:
        accuracy, loss = self.evaluate(self.splits.test)
        record = {"test_accuracy": accuracy, "test_loss": loss}
        if self.splits.validation is not None:
            record["val_accuracy"], record["val_loss"] = self.evaluate(self.splits.validation)
        return record

    @torch.no_grad()
    def evaluate(self, batches: Batches) -> tuple[float, float]:
        """Accuracy and mean cross entropy (no smoothing) over a split; of mirrored images too if the recipe says so."""
        self.model.eval()
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for images, labels in batches.epoch(0, self.recipe.eval_batch_size):
            logits = self.predict(images)
            if self.recipe.flip_tta:
                logits = (logits + self.predict(images.flip(3))) / 2
            correct += (logits.argmax(1) == labels).sum()
            loss += F.cross_entropy(logits, labels, reduction="sum")
        return correct.item() / batches.num_samples, loss.item() / batches.num_samples

    def predict(self, images: Tensor) -> Tensor:
        """Logits in float32, in the trial's arithmetic."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits: Tensor = self.model(images)
        return logits.float()

    def _complete(self, record: Record, reconfigured: bool) -> None:
        """Add counted and measured cost to an epoch's record, and remember it."""
        self.progress.best_accuracy = max(self.progress.best_accuracy, record["test_accuracy"])
        seconds, ledger = self.clock.seconds, self.ledger
        densities = {name: self.hooks.method.density(name, self.ctx) for name in self.ctx.layers}
        record |= {
            "epoch": self.ctx.epochs_done,
            "epochs_left": self._epochs_left(),
            "train_time_s": self.clock.training,
            "eval_time_s": seconds["eval"],
            "reconfigure_time_s": seconds["reconfigure"],
            "compile_time_s": seconds["compile"],
            "train_flops": dict(ledger.train_flops),
            "params": sum(parameter.numel() for parameter in self.model.parameters()),
            "inference_flops": ledger.inference_flops(),
            "layers": {
                name: {
                    "out": ledger.current[name].out_channels,
                    "in": ledger.current[name].in_channels,
                    "density": list(densities[name]),
                    "weight_density": weight_density(layer),
                }
                for name, layer in self.ctx.layers.items()
            },
            "reconfigured": reconfigured,
        }
        if remembered := self.hooks.method.record(self.ctx):
            record["method"] = dict(remembered)
        self.progress.last_record = record

    def _note_counted_memory(self, saved: SavedTensors) -> None:
        """On the CPU, once for each architecture: what a step keeps for backward, and what is held all the time."""
        held = saved.bytes + held_bytes(self.model, self.optimizer)
        if not self.optimizer.state and self.recipe.momentum:  # the first step of all: momentum is yet to come
            held += sum(parameter.numel() * parameter.element_size() for parameter in self.model.parameters())
        self._note_memory(held)
        self.progress.memory_is_counted = True

    def _note_memory(self, step_bytes: int) -> None:
        self.progress.step_memory_bytes = step_bytes
        self.progress.peak_memory_bytes = max(self.progress.peak_memory_bytes, step_bytes)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed trial needs to go on bit for bit."""
        return {
            "reconfigurations": [plan.to_json() for plan in self.hooks.reconfigurations],
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "hooks": self.hooks.state_dict(),
            "ledger": self.ledger.state_dict(),
            "clock": self.clock.state_dict(),
            "progress": vars(self.progress).copy(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the architecture is replayed first, then everything is loaded into it."""
        self.hooks.replay([ReconfigPlan.from_json(plan) for plan in state["reconfigurations"]])
        self.model.load_state_dict(state["model"], strict=True)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])
        self.step.forget()
        self.hooks.load_state_dict(state["hooks"])
        self.ledger.load_state_dict(state["ledger"])
        self.clock.load_state_dict(state["clock"])
        self.progress = Progress(**state["progress"])
        if self.progress.finished:
            self.hooks.empty_plans()  # the weights in the state are the finished ones already
        torch.set_rng_state(state["random"].cpu())
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_cuda"].cpu(), self.device)


def _step(
    hooks: Hooks, recipe: Recipe, dtype: torch.dtype, scaler: torch.amp.GradScaler | None, compile_backend: str
) -> EagerStep:
    """What computes the gradients of a step, as the recipe says."""
    if recipe.execution == "compile":
        return CompiledStep(hooks, recipe, dtype, scaler, compile_backend)
    return {"eager": EagerStep, "cuda_graph": GraphStep}[recipe.execution](hooks, recipe, dtype, scaler)


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.SGD:
    """SGD over all parameters; normalisation and biases apart where the recipe does not decay them."""
    parameters = list(model.parameters())
    if recipe.decay_norm_and_bias:
        groups = [{"params": parameters, "weight_decay": recipe.weight_decay}]
    else:
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
    return SGD(groups, lr=recipe.learning_rate_at(0.0), momentum=recipe.momentum, nesterov=recipe.nesterov)
