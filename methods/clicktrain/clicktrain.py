"""ClickTrain: every 3x3 kernel keeps a pattern of four weights, and whole kernels are pruned, during training.

Source: Zhang, Yuan, Niu, Tian, Jin, Zhuang, Jiang, Wang, Ren, Song, Tao, "ClickTrain: Efficient and Accurate End-to-End
Deep Learning Training via Fine-Grained Architecture-Preserving Pruning", ICS 2021. `docs/methods/clicktrain.md` lists
the differences from the paper and its code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor, nn

from methods.clicktrain import settings
from methods.clicktrain.mixup import mixup
from methods.clicktrain.pattern_masks import PatternMasks
from methods.clicktrain.patterns import KEPT, POSITIONS, penalty, penalty_arithmetic
from methods.masks.backends import MaskedBackends
from methods.masks.scores import saliency, uniform_random
from suite.errors import UsageError
from suite.method import Context, Density, Method, OpPlan
from suite.parameters import Search
from suite.plan import random_key
from suite.recipe import Tuning
from suite.registry import register

Share = Annotated[float, Interval(ge=0, lt=1)]
MOMENTUM = ("momentum_buffer", "exp_avg", "momentum")  # names of SGD, Adam and its relatives, and timm's


@register("method", "clicktrain")
class ClickTrain(Method):
    """ClickTrain: each 3x3 kernel keeps a pattern of four weights, and the least important kernels are pruned whole.

    Until `warmup`, training is dense training, bit for bit. The next batches decide what is pruned; a group lasso then
    shrinks exactly those weights, and from `hard_prune` on they are set to zero after every step.

    Attributes:
        ratios: Which share of its kernels each layer loses. `published` uses the list in the authors' configuration for
            this task and network, and the name of a list uses that list. `solved` computes shares that reach
            `compression`; so does `published` if there is no list, or if `compression` is given.
        compression: Compression ratio of all prunable 3x3 layers together, for which shares are computed. If it is not
            given, it is the smaller one in the paper's tables for this network, or 8.
        allocation: Whether computed shares are equal in all layers (`uniform`), or the remaining share of a layer is in
            proportion to the sum of its dimensions over their product, so that wide layers lose more (`erdos_renyi`).
        schedule: Whether weights are masked at the epoch of the authors' configuration (`config`), or at the earlier
            one of the `paper`.
        warmup: Share of the epochs after which patterns are chosen; replaces that of the schedule.
        hard_prune: Share of the epochs after which weights are masked; replaces that of the schedule.
        coefficient: Coefficient of the lasso; replaces that of the configuration.
        pool: The patterns from which each kernel gets one: those of the configuration (`published`), the first 4, 8 or
            12 generic ones, or four that are made for the network when patterns are chosen (`dynamic`).
        scope: Whether each `kernel` has its own pattern (published), or all kernels of a `filter` share one.
        balance: Whether kernels compete within the `layer` (code), or every `filter` keeps the same number (slides).
        batches: Number of batches whose saliencies are averaged for the decision; the published code uses one.
        selection: What is pruned. `saliency` prunes what matters least. `random`, the random twin, prunes as many
            kernels of each layer and uses patterns of the same pool, but chooses both by random numbers from the seed.
        mask_momentum: Whether the optimizer's momentum is masked like the weights; the published code does not.
        mixup: Both parameters of the Beta distribution for mixing images, from `hard_prune` on; 0 switches it off.
        backend: How the products with masked weights are computed. `masked` is torch, which multiplies the zeros, as
            the published code does. `skipping` uses kernels that skip masked weights. `blocks` is torch with 2x2
            convolutions of the filters that keep the same block (it needs `scope=filter` and `pool=4`). `auto` uses
            in each layer one that is faster than `masked` by a margin; this is measured once on this machine for layers
            of equal shape and density (`methods.backends.autotune`).
    """

    version: ClassVar[int] = 2  # 2: `skipping` sums in another order
    source: ClassVar[str] = "Zhang et al., ClickTrain, ICS 2021"
    random_twin: ClassVar[Mapping[str, Any]] = {"selection": "random"}
    cpu_kernels: ClassVar[Sequence[str]] = ("sparse_conv",)
    tuning: ClassVar[Sequence[Tuning]] = (
        Tuning(trials=0, chosen_on="publication", source="its configurations", presets=("paper",)),
        Tuning(
            trials=8,
            chosen_on="validation images",
            source="results/cpu-zen5-2cores/clicktrain-tuning.csv; no published value was replaced. No mixup, without "
            "trials of it. Other variants were compared on test images, and none became a default",
            presets=("quick", "smoke"),
        ),
    )

    ratios: str = "published"
    compression: Annotated[float, Gt(POSITIONS / KEPT)] | None = None
    allocation: Literal["uniform", "erdos_renyi"] = "uniform"
    schedule: Literal["config", "paper"] = "config"
    warmup: Share | None = None
    hard_prune: Share | None = None
    coefficient: Annotated[Annotated[float, Ge(0)] | None, Search(1e-5, 1e-2, log=True)] = None
    pool: Annotated[Literal["published", 4, 8, 12, "dynamic"], Search()] = "published"
    scope: Literal["kernel", "filter"] = "kernel"
    balance: Literal["layer", "filter"] = "layer"
    batches: Annotated[int, Ge(1)] = 1
    selection: Literal["saliency", "random"] = "saliency"
    mask_momentum: Annotated[bool, Search()] = False
    mixup: Annotated[float, Ge(0)] = 0.3
    backend: Literal["auto", "masked", "skipping", "blocks"] = "auto"

    @classmethod
    def defaults(cls, task: str, preset: str) -> dict[str, Any]:
        """Use the published values for `paper`; mixup needs more epochs than the short presets have."""
        return {} if preset == "paper" else {"mixup": 0.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        settings.check_ratios(self.ratios, self.compression, self.allocation)
        if self.warmup is not None and self.hard_prune is not None and self.warmup > self.hard_prune:
            raise ValueError(f"warmup is {self.warmup}; it must not be greater than hard_prune, {self.hard_prune}")
        self._saliencies: dict[str, Tensor] = {}  # by layer, summed over the batches so far
        self._batches_seen = 0
        self._masked_from: int | None = None  # the first step whose forward has masked weights
        self._penalised = False  # in the present step

    def setup(self, ctx: Context) -> None:
        # Find the published settings.
        found = settings.find(ctx.task, ctx.network, self.ratios if self.compression is None else "solved")
        self._coefficient = found.coefficient if self.coefficient is None else self.coefficient
        pool = found.pool if self.pool == "published" else self.pool

        # Choose how many kernels of each layer are pruned.
        self._percent = settings.percents(ctx, found, self.ratios, self.compression, self.allocation)
        in_filters, per_filter = self.balance == "filter", self.scope == "filter"
        settings.check_layers(ctx, self._percent, equal_in_filters=in_filters)
        self._masks = PatternMasks(self._percent, pool, one_per_filter=per_filter, equal_in_filters=in_filters)
        kind = {"pool": pool, "scope": self.scope, "balance": self.balance}
        self._structures = {name: {"percent": round(share, 6), **kind} for name, share in self._percent.items()}
        self._backends = MaskedBackends(self.backend, ctx.device, has_blocks=self._masks.has_blocks)

        # Place the stages.
        wanted = settings.expected_compression(ctx, self._percent) if self.schedule == "paper" else None
        self.choose_epoch, self.hard_prune_epoch = settings.stages(ctx, found, self.warmup, self.hard_prune, wanted)
        if ctx.train_images and self.batches > (steps := max(ctx.train_images // ctx.batch_size, 1)):
            raise ValueError(f"batches is {self.batches}; the epoch in which patterns are chosen has {steps}")

    def plan(self, name: str, layer: nn.Module) -> OpPlan | None:
        if self._masked_from is None or name not in self._masks:
            return None
        return self._backends.plan(name, layer, lambda weight: self._masks[name].kept(weight).bool())

    def transform_batch(self, images: Tensor, labels: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        if not self.mixup or ctx.epochs_done < self.hard_prune_epoch:
            return images, labels
        return mixup(images, labels, ctx.num_classes, self.mixup, ctx.key("mixup"))

    def regularization(self, model: nn.Module, ctx: Context) -> Tensor | None:
        """Return the lasso over what will be pruned, from the step after the decision until weights are masked."""
        self._penalised = bool(self._masks) and ctx.epochs_done < self.hard_prune_epoch and self._coefficient > 0
        weights = [ctx.layers[name].weight for name in self._masks]
        return self._coefficient * penalty([*self._masks.values()], weights) if self._penalised else None

    def before_optimizer_step(self, ctx: Context) -> None:
        """Sum the saliencies in the first steps after the warm-up, and decide what is pruned in the last of them."""
        if self._masks or ctx.epochs_done < self.choose_epoch:
            return
        for name in self._percent:
            score = self._score(name, ctx)
            self._saliencies[name] = self._saliencies[name] + score if self._batches_seen else score
        self._batches_seen += 1
        if self._batches_seen == self.batches:
            self._masks.choose(self._saliencies)
            self._saliencies = {}

    def _score(self, name: str, ctx: Context) -> Tensor:
        """Return how much each weight of a layer matters in this step, or random numbers for a random selection."""
        weight = ctx.layers[name].weight
        if self.selection == "saliency":
            return saliency(weight)
        key = random_key(ctx.seed, ctx.step, 0, "saliency", name)  # without the rank: equal in all processes
        return uniform_random(weight, torch.Generator().manual_seed(key))

    def after_optimizer_step(self, ctx: Context) -> None:
        if not self._masks or ctx.epochs_done < self.hard_prune_epoch:
            return
        if self._masked_from is None:
            self._backends.choose(ctx, self._structures, self._masks.example)
            self._masked_from = ctx.step + 1
            ctx.replan()
        weights = [ctx.layers[name].weight for name in self._masks]
        momenta: list[Tensor | None] = [None] * len(weights)
        if self.mask_momentum:
            assert ctx.optimizer is not None
            momenta = [momentum_of(ctx.optimizer.state.get(weight, {})) for weight in weights]
        self._masks.apply(weights, momenta)

    def on_epoch_end(self, ctx: Context) -> None:
        """Choose the backends in the first epoch, so that every checkpoint holds the choice."""
        self._backends.choose(ctx, self._structures, self._masks.example)

    def choose_again(self, ctx: Context) -> None:
        self._backends.forget()
        self._backends.choose(ctx, self._structures, self._masks.example)

    def density(self, name: str, ctx: Context) -> Density:
        """Return the share of remaining weights for all three products: gradients of masked weights have no effect.

        The exception is the norm by which gradients are clipped: backends that skip masked weights leave them out.
        """
        if self._masked_from is None or ctx.step < self._masked_from or name not in self._masks:
            return Density()
        share = self._masks[name].density
        return Density(share, share, share)

    def kept_gradients(self, ctx: Context) -> Mapping[str, Tensor]:
        """Return the masks of the weights that remain, as soon as the other weights are set to zero after every step.

        The momentum of masked weights, which no weight depends on, differs from that with all gradients.
        """
        return {} if self._masked_from is None else self._masks.kept(ctx.layers)

    def overhead(self, name: str, samples: int, ctx: Context) -> float:
        """Return the operations of the lasso or the mask; mixup belongs to no layer and is not counted."""
        if name not in self._masks:
            return 0.0
        weight = ctx.layers[name].weight
        if self._penalised:
            return penalty_arithmetic(weight, self._masks[name].outside is not None)
        return float(weight.numel()) if self._masked_from is not None else 0.0

    def record(self, ctx: Context) -> Mapping[str, Any]:
        """Return the stage, the backends and, after the decision, the compression and the patterns' kernels."""
        if not self._masks:
            return {"stage": "warm-up", **self._backends.record(ctx)}
        densities = {name: mask.density for name, mask in self._masks.items()}
        return {
            "stage": "lasso" if ctx.epochs_done <= self.hard_prune_epoch else "masked",
            **self._backends.record(ctx),
            "compression": settings.compression(ctx.model, densities),
            "patterns": self._masks.count_patterns(),
        }

    def state_dict(self) -> dict[str, Any]:
        own = {"saliencies": self._saliencies, "batches_seen": self._batches_seen, "masked_from": self._masked_from}
        return {**own, **self._masks.state_dict(), **self._backends.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._saliencies, self._batches_seen = dict(state["saliencies"]), state["batches_seen"]
        self._masked_from = state["masked_from"]
        self._masks.load_state_dict(state)
        self._backends.load_state_dict(state)


def momentum_of(state: Mapping[str, Any]) -> Tensor | None:
    """Return the momentum in an optimizer's state of a weight; `None` if the optimizer has none.

    Raises:
        UsageError: The state has tensors, and none with a known name.
    """
    found = [state[name] for name in MOMENTUM if isinstance(state.get(name), Tensor)]
    others = [name for name, value in state.items() if isinstance(value, Tensor) and value.ndim > 1]
    if others and not found:
        raise UsageError(
            f"mask_momentum=true knows momentum named {', '.join(MOMENTUM)}, and the optimizer has "
            f"{', '.join(others)}; use SGD or Adam, or mask_momentum=false"
        )
    return found[0] if found else None
