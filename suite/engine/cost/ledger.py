"""The ledger: FLOPs of a trial by layer and product, summed over the changing architecture.

Every number of training FLOPs has four variants, which are columns of `layers.csv`:

    dense       the model as it was built
    current     the shapes of the running step
    effective   current, times the density that the method states: what hardware that skips zeros would need
    executed    what the kernels multiplied

Emulation by masks has executed = current. The ledger counts operations of the method itself separately, as overhead.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from suite.engine.cost.flops import PRODUCTS, LayerCost, count_layers, density_of_weights, weight_density
from suite.engine.cost.memory import size_of
from suite.engine.network.planned_layer import PlannedLayer
from suite.errors import UsageError, nearest
from suite.method import Context, Density, Method
from suite.recipe import Phase

COLUMNS = ("dense", "current", "effective", "executed")
Flops = dict[str, dict[str, float]]


class Ledger:
    """Sums FLOPs over a trial, by layer and by interval between changes of the network or of the images' size.

    Args:
        ctx: Context of the method. Its model is counted.
        method: The method, which states density and overhead in every step.
        input_shape: (C, H, W) of one image.
        dense: Layers of the model as it was built; `None` if it has not changed.
        current: Layers of the model now; `None` to count them.
        built: Layers of the model as it was built, by phase, if the training is not in its first phase.

    Attributes:
        dense, current: Layers of the model as it was built, and now, in the present phase.
        built: Layers of the model as it was built, by phase.
        evaluated: Layers of the model now for images of an evaluation.
        phase: The present phase. A phase without a size has images of `input_shape`.
        train_flops: FLOPs of all steps, and of other passes of the training (`add_forward`), by variant.
        step_flops: FLOPs of the last step, by variant, with the residual branches that it left out
            (`Context.left_out`), because other steps leave out others. `train_flops` is without them.
        step_overhead: Operations of the method itself in the last step.
        step_communication: Bytes that a rank communicates in such a step of data-parallel training, by kind.
        train_communication: Bytes that a rank communicates in all steps, by kind.
    """

    def __init__(
        self,
        ctx: Context,
        method: Method,
        input_shape: tuple[int, int, int],
        dense: Mapping[str, LayerCost] | None = None,
        current: Mapping[str, LayerCost] | None = None,
        built: Mapping[Phase, Mapping[str, LayerCost]] | None = None,
    ) -> None:
        self._ctx, self._model, self._method, self._input_shape = ctx, ctx.model, method, input_shape
        self.phase = Phase()
        self.current = count_layers(self._model, input_shape) if current is None else dict(current)
        self.dense = dict(self.current if dense is None else dense)
        self.evaluated = self.current
        self.built: dict[Phase, Mapping[str, LayerCost]] = {Phase(): self.dense, **(built or {})}
        self.train_flops = dict.fromkeys(COLUMNS, 0.0)
        self.step_flops = dict.fromkeys(COLUMNS, 0.0)
        self.step_overhead = 0.0
        self._all_communication = count_step(self._model)
        self._kept_gradients = KeptGradients(method)
        self.step_communication: dict[str, int] = {}
        self.train_communication = dict.fromkeys(self._all_communication, 0)
        self._interval: dict[str, Flops] = {}
        self._stated: dict[str, Density] = {}  # in the last step
        self._rows: list[dict[str, Any]] = []
        self._first_epoch = 1
        self._open_interval()

    def add_step(self, samples: int) -> None:
        """Count one training step of `samples` images.

        Call this after the gradients and before any hook that can change a mask, so that the density describes the
        masks of the step. Call `add_overhead` after the step.
        """
        self._steps += 1
        self._samples += samples
        step_flops = dict.fromkeys(COLUMNS, 0.0)
        flops_done = dict.fromkeys(COLUMNS, 0.0)
        for name, dense in self.dense.items():
            cost, layer = self.current.get(name), self._ctx.layers.get(name)
            sums = self._interval[name]
            # A method knows only the planned layers that still exist.
            density = self._method.density(name, self._ctx) if cost and layer is not None else Density()
            self._stated[name] = density
            executed = layer.meter.take() if isinstance(layer, PlannedLayer) else None
            left_out = name.partition(":")[0] in self._ctx.left_out  # a product outside of layers is MODULE:PRODUCT
            for index, product in enumerate(PRODUCTS):
                whole = float(dense.flops(product) * samples)
                now = float(cost.flops(product) * samples) if cost else 0.0
                values = (whole, now, now * density[index], now * (executed[index] if executed else 1.0))
                done = (whole, now, 0.0, 0.0) if left_out else values
                for column, value, counted in zip(COLUMNS, values, done, strict=True):
                    sums[product][column] += counted
                    step_flops[column] += value
                    flops_done[column] += counted
        self.step_flops = step_flops
        self._kept_gradients.update(self._ctx)
        all_of_it = self._all_communication
        self.step_communication = {**all_of_it, "gradients": all_of_it["gradients"] - self._kept_gradients.left_out}
        for kind, size in self.step_communication.items():
            self.train_communication[kind] += size
        for column in COLUMNS:
            self.train_flops[column] += flops_done[column]

    def add_forward(self, samples: int) -> None:
        """Count a forward pass of `samples` images that belongs to the training but to no step.

        It is in `train_flops` alone, and not in the variant `dense`, by which the others are divided.
        """
        flops = float(samples * sum(cost.flops("forward") for cost in self.current.values()))
        for column in COLUMNS[1:]:
            self.train_flops[column] += flops

    def counts(self) -> Tensor:
        """Return the counts of the running interval and of the whole trial, as one tensor that ranks can sum."""
        layers = [value for flops in self._interval.values() for row in flops.values() for value in row.values()]
        values = [*layers, *self._overhead.values(), *self.train_flops.values(), self._samples]
        return torch.tensor(values, dtype=torch.float64)

    def set_counts(self, counts: Tensor) -> None:
        """Replace the counts by their sum over the ranks, in the order of `counts`."""
        values = iter(counts.tolist())
        for flops in self._interval.values():
            for product in flops.values():
                product.update({column: next(values) for column in product})
        self._overhead.update({name: next(values) for name in self._overhead})
        self.train_flops.update({column: next(values) for column in self.train_flops})
        self._samples = round(next(values))

    def add_overhead(self, samples: int) -> None:
        """Add the method's own operations in a step, after all its hooks of that step."""
        self.step_overhead = 0.0
        for name in self.dense:
            if name in self.current and name in self._ctx.layers:
                overhead = self._method.overhead(name, samples, self._ctx)
                self._overhead[name] += overhead
                self.step_overhead += overhead

    def step_cost(self) -> dict[str, Any]:
        """Return the cost of the last step, for the record of an epoch. Call this after `add_overhead`."""
        return {
            "step_flops": dict(self.step_flops),
            "step_overhead": self.step_overhead,
            "step_communication": dict(self.step_communication),
        }

    def close_interval(self, epochs_done: int) -> None:
        """Store the rows of the interval that ends with `epochs_done`, before the model is changed."""
        if self._steps:
            self._rows += self._interval_rows(epochs_done)
            self._open_interval()  # nothing is counted twice, even if the change fails

    def recount(self, epochs_done: int) -> None:
        """Count the changed model, after `close_interval` and the change."""
        self._count()
        self._first_epoch = epochs_done + 1
        self._open_interval()

    def enter(self, phase: Phase, epochs_done: int) -> None:
        """Count steps of another phase from now on, as a new interval. The parameters must already be frozen."""
        self.close_interval(epochs_done)
        self.phase = phase
        self.recount(epochs_done)

    def inference_flops(self, *, effective: bool = False) -> float:
        """Return the FLOPs of one image's inference; `effective` counts only nonzero weights."""
        total = 0.0
        for cost in self.evaluated.values():
            if not cost.training_only:
                density = density_of_weights(cost, self._model) if effective else None
                total += cost.flops("forward") * (1.0 if density is None else density)
        return total

    @property
    def inference_flops_dense(self) -> float:
        """FLOPs of one image's inference by the model as it was built."""
        return float(sum(cost.flops("forward") for cost in self.built[Phase()].values() if not cost.training_only))

    def to_csv(self, last_epoch: int) -> str:
        """Return `layers.csv`: one row per layer and interval; `last_epoch` is the last epoch, finished or not."""
        rows = self._rows + (self._interval_rows(last_epoch) if self._steps else [])
        text = io.StringIO()
        fields = list(rows[0]) if rows else ["interval"]
        writer = csv.DictWriter(text, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def layer_records(self) -> dict[str, dict[str, Any]]:
        """Return channels, stated densities and weight density of each planned layer, for an epoch's record.

        The stated densities are those of the epoch's last step, since a method may change them at its end.
        """
        return {
            name: {
                "out": self.current[name].out_channels,
                "in": self.current[name].in_channels,
                "density": list(self._stated.get(name, Density())),
                "weight_density": weight_density(layer),
            }
            for name, layer in self._ctx.layers.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed trial needs."""
        return {
            "rows": self._rows,
            "image_size": self.phase.image_size,
            "frozen": self.phase.frozen,
            "first_epoch": self._first_epoch,
            "interval": self._interval,
            "overhead": self._overhead,
            "steps": self._steps,
            "samples": self._samples,
            "step_flops": self.step_flops,
            "train_flops": self.train_flops,
            "train_communication": self.train_communication,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, after the reconfigurations were replayed on the model."""
        self.phase = phase_of_state(state)
        self._count()
        self._rows, self._first_epoch = list(state["rows"]), state["first_epoch"]
        self._interval, self._overhead = state["interval"], state["overhead"]
        self._steps, self._samples = state["steps"], state["samples"]
        self.step_flops, self.train_flops = state["step_flops"], state["train_flops"]
        self.train_communication = state["train_communication"]

    def _count(self) -> None:
        self.evaluated = self.current = count_layers(self._model, self._input_shape)
        self._all_communication = count_step(self._model)
        self.dense = dict(self.built[self.phase])
        if (side := self.phase.image_size) is not None:
            self.current = count_layers(self._model, (self._input_shape[0], side, side))

    def _open_interval(self) -> None:
        self._interval = {name: {product: dict.fromkeys(COLUMNS, 0.0) for product in PRODUCTS} for name in self.dense}
        self._overhead = dict.fromkeys(self.dense, 0.0)
        self._steps = self._samples = 0

    def _interval_rows(self, last_epoch: int) -> list[dict[str, Any]]:
        number = 1 + max((row["interval"] for row in self._rows), default=0)
        rows = []
        for name, dense in self.dense.items():
            cost = self.current.get(name)
            density = density_of_weights(cost, self._model) if cost else 0.0
            row: dict[str, Any] = {
                "interval": number,
                "first_epoch": self._first_epoch,
                "last_epoch": last_epoch,
                "steps": self._steps,
                "samples": self._samples,
                "layer": name,
                "kind": dense.kind,
                "in_channels": cost.in_channels if cost else 0,
                "out_channels": cost.out_channels if cost else 0,
                "kernel": "x".join(map(str, dense.kernel)),
                "input": "x".join(map(str, dense.input)),
                "output": "x".join(map(str, dense.output)),
                "params": cost.params if cost else 0,
                # Attention has no weights; a removed layer has no nonzero weight.
                "weight_density": "" if dense.kind == "attention" or density is None else density,
            }
            for product in PRODUCTS:
                for column in COLUMNS:
                    row[f"{product}_{column}"] = self._interval[name][product][column]
            row["overhead"] = self._overhead[name]
            rows.append(row)
        return rows


def phase_of_state(state: Mapping[str, Any]) -> Phase:
    """Return the phase in a ledger's state."""
    return Phase(state["image_size"], state["frozen"])


class KeptGradients:
    """Masks of the gradients that a method uses (`Method.kept_gradients`), and the bytes of the other gradients.

    Attributes:
        masks: Masks by the id of the weight, without weights that several layers share and weights that are not
            trained.
        left_out: Bytes of the gradients that the masks leave out.
    """

    def __init__(self, method: Method) -> None:
        self._method = method
        self._seen: list[tuple[Tensor, Tensor]] = []  # weight and mask of each layer that the method named
        self.masks: dict[int, Tensor] = {}
        self.left_out = 0

    def update(self, ctx: Context) -> bool:
        """Ask the method, before a step, and return whether masks or weights have changed since the last call.

        Raises:
            UsageError: The method names a layer that is not planned, or a mask is not bool or has another shape.
        """
        kept = self._method.kept_gradients(ctx)
        where = f"{type(self._method).__name__}.kept_gradients"
        for name in kept.keys() - ctx.layers.keys():
            raise UsageError(f"{where} names '{name}', which is not a planned layer{nearest(name, ctx.layers)}")
        seen = [(ctx.layers[name].weight, mask) for name, mask in kept.items()]
        if len(seen) == len(self._seen) and all(
            weight is old_weight and mask is old_mask
            for (weight, mask), (old_weight, old_mask) in zip(seen, self._seen, strict=True)
        ):
            return False
        users = Counter(id(layer.weight) for layer in ctx.layers.values())
        self._seen, self.masks, self.left_out = seen, {}, 0
        for name, (weight, mask) in zip(kept, seen, strict=True):
            if mask.dtype != torch.bool or mask.shape != weight.shape:
                raise UsageError(
                    f"{where} returns a mask of {mask.dtype} and shape {tuple(mask.shape)} for '{name}', whose weight "
                    f"has the shape {tuple(weight.shape)}; a mask is bool and has the weight's shape"
                )
            if weight.requires_grad and users[id(weight)] == 1:
                self.masks[id(weight)] = mask
                self.left_out += (mask.numel() - int(mask.count_nonzero())) * weight.element_size()
        return True


def count_step(model: nn.Module) -> dict[str, int]:
    """Return the bytes that a rank communicates in every step of data-parallel training, by kind.

    Gradients have the size of all trained parameters, as if the method used all of them. The decision of every step is
    the mean loss, a float32 number. Statistics are averaged once per epoch and not in every step, so they do not count.

    Args:
        model: The network. Masked weights count; removed channels do not.
    """
    gradients = size_of(parameter for parameter in model.parameters() if parameter.requires_grad)
    return {"gradients": gradients, "decisions": 4}
