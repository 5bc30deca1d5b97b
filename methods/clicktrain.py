"""ClickTrain: every 3x3 kernel keeps a pattern of four weights, and whole kernels go, while the network trains.

Source: Zhang, Yuan, Niu, Tian, Jin, Zhuang, Jiang, Wang, Ren, Song, Tao, "ClickTrain: Efficient and Accurate End-to-End
Deep Learning Training via Fine-Grained Architecture-Preserving Pruning", ICS 2021. `docs/methods/clicktrain.md` says
what differs here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.backends.autotune import Choice
from methods.backends.blocks import BlockConvolutions
from methods.backends.fastest_backend import fastest
from methods.backends.sparse_convolution import Skipping, can_skip
from methods.shared import clicktrain_settings as settings
from methods.shared.allocation import ALLOCATIONS
from methods.shared.patterns import (
    KEPT,
    POSITIONS,
    Dropped,
    choose_patterns,
    dynamic_pool,
    generic_pool,
    kernels_that_go,
    least_important_kernels,
    penalty,
    penalty_arithmetic,
)
from suite.method import Backend, Context, Density, Method, OpPlan
from suite.ops import TORCH, PlannedConv2d
from suite.registry import register

MASKED = "masked"  # torch's dense products, by zeros too
BLOCKS = 4  # the pool whose patterns are the 2x2 blocks


@register("method", "clicktrain")
class ClickTrain(Method):
    """ClickTrain: pattern pruning. Four weights of each 3x3 kernel stay, and the least important kernels go whole.

    Epochs before `warmup` train as dense training does, bit for bit. The first batches after it decide what goes; a
    group lasso then shrinks exactly that, and from `hard_prune` on it is set to zero after every step.

    Attributes:
        ratios: which share of the kernels of which layer goes. `published`: the list of the configuration for this task
            and network; `solved`, and where there is none or `compression` is given: shares that compress so much,
            by `allocation`; or the name of a published list.
        compression: of the 3x3 convolutions together, for which the shares are solved; if none is given, the smaller
            one of the paper's tables for this network, or 8.
        allocation: how solved shares differ by layer: they do not (`uniform`), or wide layers lose more
            (`erdos_renyi`: the share that stays is in proportion to the sum of a layer's dimensions over their
            product); needs `compression`, or `ratios=solved`.
        schedule: when weights are masked from: as the published `config` has it, or earlier, as the `paper` says.
        warmup: share of the epochs after which it is decided what goes, in place of the schedule's.
        hard_prune: share of the epochs from which on weights are masked, in place of the schedule's.
        coefficient: of the lasso, in place of the configuration's.
        pool: of patterns: that of the configuration (`published`), the first 4, 8 or 12 generic ones, or `dynamic`,
            four that are made for the network when it is decided.
        scope: each `kernel` has a pattern of its own (published), or all kernels of a `filter` have one.
        balance: kernels compete in the whole `layer` (code), or every `filter` keeps as many (slides).
        batches: how many batches' saliencies are averaged to decide; the code takes one.
        mask_momentum: whether the optimizer's momentum is masked with the weights; in the code it is not.
        mixup: of images, from `hard_prune` on: both parameters of the Beta distribution; 0 for none.
        backend: who multiplies by masked weights. `masked`: torch, zeros and all (code); `skipping`: kernels that skip
            them; `blocks`: torch, by 2x2 convolutions of the filters that keep the same block (`scope=filter`,
            `pool=4`); `auto`: for each layer the one that is faster than `masked` by a margin, as measured once on
            this machine for layers of its shape and density (`methods.backends.autotune`).
    """

    source: ClassVar[str] = "Zhang et al., ClickTrain, ICS 2021"

    ratios: str = "published"
    compression: float | None = None
    allocation: Literal["uniform", "erdos_renyi"] = "uniform"
    schedule: Literal["config", "paper"] = "config"
    warmup: float | None = None
    hard_prune: float | None = None
    coefficient: float | None = None
    pool: Literal["published", 4, 8, 12, "dynamic"] = "published"
    scope: Literal["kernel", "filter"] = "kernel"
    balance: Literal["layer", "filter"] = "layer"
    batches: int = 1
    mask_momentum: bool = False
    mixup: float = 0.3
    backend: Literal["auto", "masked", "skipping", "blocks"] = "auto"

    @classmethod
    def defaults(cls, task: str, preset: str) -> dict[str, Any]:
        """As published for `paper`; the short presets have no mixup, which needs more epochs than they have."""
        return {} if preset == "paper" else {"mixup": 0.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        settings.find("", "", self.ratios)
        if self.compression is not None and self.ratios not in ("published", "solved"):
            raise ValueError(
                f"ratios={self.ratios} is a list, which compresses as it does; compression needs ratios=solved"
            )
        if self.allocation != "uniform" and self.compression is None and self.ratios != "solved":
            raise ValueError(f"allocation={self.allocation} spreads solved shares; give compression, or ratios=solved")
        if self.compression is not None and self.compression <= POSITIONS / KEPT:
            raise ValueError(
                f"compression is {self.compression}; patterns alone compress {POSITIONS / KEPT} times, give more"
            )
        for name in ("warmup", "hard_prune"):
            share = getattr(self, name)
            if share is not None and not 0 <= share < 1:
                raise ValueError(f"{name} is {share}; a share of the epochs is at least 0 and below 1")
        if self.warmup is not None and self.hard_prune is not None and self.warmup > self.hard_prune:
            raise ValueError(f"warmup is {self.warmup} and hard_prune {self.hard_prune}; patterns are chosen before")
        if self.coefficient is not None and self.coefficient < 0:
            raise ValueError(f"coefficient is {self.coefficient}; it is 0 or more")
        if self.batches < 1:
            raise ValueError(f"batches is {self.batches}; the smallest is 1")
        if self.backend == "blocks" and self.scope != "filter":
            raise ValueError("backend=blocks: its filters keep one pattern each, which is scope=filter")
        if self.mixup < 0:
            raise ValueError(f"mixup is {self.mixup}; it is 0, for none, or more")
        self._saliencies: dict[str, Tensor] = {}  # by layer, summed over the batches seen so far
        self._batches_seen = 0
        self._pool = torch.empty(0, POSITIONS, dtype=torch.bool)
        self._patterns: dict[str, Tensor] = {}  # of 3x3 layers, (K, C) numbers of the pool
        self._dropped: dict[str, Dropped] = {}
        self._kept: dict[str, Tensor] = {}  # masks of 1 and 0, from when on weights are masked
        self._masked_from: int | None = None  # the first step whose forward has masked weights
        self._penalised = False  # in the step that is running
        self._chosen: dict[str, str] | None = None  # by layer, who multiplies by masked weights; None: not decided
        self._choices: dict[str, dict[str, Any]] = {}  # by layer, what was measured for that
        self._backends: dict[str, Backend] = {}

    def setup(self, ctx: Context) -> None:
        self._ctx = ctx
        if self.backend == "skipping" and not can_skip(ctx.device):
            raise ValueError(
                f"backend=skipping: there are no kernels that skip weights on {ctx.device.type} here (they are off, or "
                "nothing compiles them); take auto"
            )
        found = settings.find(ctx.task, ctx.network, self.ratios if self.compression is None else "solved")
        if found.ratios:
            try:
                self._percent = settings.by_layer(found.ratios, ctx.layers)
            except ValueError as error:
                raise ValueError(f"ratios={self.ratios} on {ctx.network or 'this network'}: {error}") from None
        else:
            wanted = self.compression or settings.compression_of_the_paper(ctx.task, ctx.network)
            if ctx.spaces.model_input is None:
                raise ValueError(
                    "the model cannot be followed: nothing tells which layer is the first, which stays whole"
                )
            shapes = {name: _weight(ctx.layers[name]).shape for name in _inner_3x3_convolutions(ctx)}
            kept = ALLOCATIONS[self.allocation](shapes, POSITIONS / KEPT / wanted)
            self._percent = {name: 100 * (1 - share) for name, share in kept.items()}
        if not self._percent:
            raise ValueError(
                "this network has no 3x3 convolution behind its first layer, and no published list fits it"
            )
        self._coefficient = found.coefficient if self.coefficient is None else self.coefficient
        self._generic = found.pool if self.pool == "published" else self.pool
        if self.backend == "blocks" and self._generic != BLOCKS:
            raise ValueError(f"backend=blocks: patterns are the four 2x2 blocks, which is pool={BLOCKS}")
        self._check_layers()
        warmup, hard_prune = self.warmup, self.hard_prune
        if hard_prune is None:
            of_paper = self.schedule == "paper"
            compression = self._compression_to_be()
            hard_prune = (
                settings.hard_prune_of_the_paper(ctx.task, ctx.network, compression) if of_paper else found.hard_prune
            )
        if warmup is None:
            # The paper does not say when it chose; one configuration does so later than the paper masks.
            warmup = found.choose if found.choose <= hard_prune else settings.CHOOSE_OF_HARD_PRUNE * hard_prune
        self.choose_epoch, self.hard_prune_epoch = (round(share * ctx.epochs) for share in (warmup, hard_prune))
        if not self.choose_epoch <= self.hard_prune_epoch < ctx.epochs:
            raise ValueError(
                f"of {ctx.epochs} epochs, patterns would be chosen after {self.choose_epoch} and weights masked after "
                f"{self.hard_prune_epoch}; set warmup and hard_prune so that these ascend and one epoch is left"
            )
        if ctx.train_images and self.batches > (steps := max(ctx.train_images // ctx.batch_size, 1)):
            raise ValueError(f"batches is {self.batches}; the epoch that decides has {steps}")

    def _check_layers(self) -> None:
        """Refuse layers that cannot be pruned, before a warm-up is spent on them."""
        for name, percent in self._percent.items():
            layer, weight = self._ctx.layers[name], _weight(self._ctx.layers[name])
            of_filter = self.balance == "filter"
            competing = weight.shape[1] * (1 if of_filter else weight.shape[0])
            if not isinstance(layer, nn.Conv2d) or layer.groups > 1:
                raise ValueError(f"'{name}' is a grouped convolution, whose kernels have no patterns here")
            if not weight.requires_grad:
                raise ValueError(f"'{name}' is not trained; without gradients nothing says what it could lose")
            if kernels_that_go(percent, competing) == competing:
                whose = "a filter" if of_filter else "the layer"
                raise ValueError(f"'{name}': {percent:.4g} % of its kernels leave {whose} none; compress less")

    def plan(self, name: str, layer: nn.Module) -> OpPlan | None:
        chosen = (self._chosen or {}).get(name, MASKED)
        if self._masked_from is None or chosen == MASKED:
            return None
        if name not in self._backends:
            assert isinstance(layer, PlannedConv2d)
            kept = self._dropped[name].kept(_weight(layer).detach()).bool()
            self._backends[name] = self._backend(chosen, kept, layer)
        return OpPlan(backend=self._backends[name])

    def _backend(self, chosen: str, kept: Tensor, layer: PlannedConv2d) -> Backend:
        if chosen == "blocks":
            return BlockConvolutions(kept)
        return Skipping(kept, layer.geometry) if chosen == "skipping" else TORCH

    def transform_batch(self, images: Tensor, labels: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Mixup: each image and its label mixed with another's of the batch, by one share for all."""
        if not self.mixup or ctx.epochs_done < self.hard_prune_epoch:
            return images, labels
        draw = np.random.default_rng(ctx.key("mixup"))
        share = float(draw.beta(self.mixup, self.mixup))
        others = torch.from_numpy(draw.permutation(len(images))).to(images.device)
        targets = F.one_hot(labels, ctx.num_classes).float() if labels.ndim == 1 else labels
        return torch.lerp(images[others], images, share), torch.lerp(targets[others], targets, share)

    def regularization(self, model: nn.Module, ctx: Context) -> Tensor | None:
        """The lasso over what is to go, from the step after it was decided until weights are masked."""
        self._penalised = bool(self._dropped) and ctx.epochs_done < self.hard_prune_epoch and self._coefficient > 0
        if not self._penalised:
            return None
        weights = [_weight(ctx.layers[name]) for name in self._dropped]
        return self._coefficient * penalty([*self._dropped.values()], weights)

    def before_optimizer_step(self, ctx: Context) -> None:
        """In the first steps after the warm-up: how salient weights are; with the last of them what goes is decided."""
        if self._dropped or ctx.epochs_done < self.choose_epoch:
            return
        for name in self._percent:
            weight = _weight(ctx.layers[name])
            assert weight.grad is not None
            saliency = (weight.grad * weight.detach()).square()
            self._saliencies[name] = self._saliencies[name] + saliency if self._batches_seen else saliency
        self._batches_seen += 1
        if self._batches_seen == self.batches:
            self._decide()

    def _decide(self) -> None:
        threes = [saliency for saliency in self._saliencies.values() if saliency.shape[2:] == (3, 3)]
        self._pool = dynamic_pool(threes) if self._generic == "dynamic" else generic_pool(int(self._generic))
        kernels = {}
        for name, saliency in self._saliencies.items():
            if saliency.shape[2:] == (3, 3):
                self._patterns[name] = choose_patterns(saliency, self._pool, one_a_filter=self.scope == "filter")
            kernels[name] = least_important_kernels(
                saliency, self._percent[name], equal_in_filters=self.balance == "filter"
            )
        self._saliencies = {}
        self._enter(kernels)

    def _enter(self, kernels: Mapping[str, Tensor]) -> None:
        """Remember what goes, made of the patterns and the kernels that were chosen."""
        for name, gone in kernels.items():
            off = None
            if name in self._patterns:
                numbers = self._patterns[name]
                off = ~self._pool.to(numbers.device)[numbers].view(*numbers.shape, 3, 3)
            self._dropped[name] = Dropped(off, gone)

    def after_optimizer_step(self, ctx: Context) -> None:
        if not self._dropped or ctx.epochs_done < self.hard_prune_epoch:
            return
        weights = {name: _weight(ctx.layers[name]) for name in self._dropped}
        if not self._kept:
            self._kept = {name: dropped.kept(weights[name].detach()) for name, dropped in self._dropped.items()}
        if self._masked_from is None:
            self._decide_backends(ctx)
            self._masked_from = ctx.step + 1
            ctx.replan()
        masks = [*self._kept.values()]
        with torch.no_grad():
            torch._foreach_mul_([*weights.values()], masks)
            if self.mask_momentum:
                assert ctx.optimizer is not None
                states = [ctx.optimizer.state[weight] for weight in weights.values()]
                held = [state.get("momentum_buffer") for state in states]
                if all(momentum is not None for momentum in held):
                    torch._foreach_mul_(held, masks)

    def on_epoch_end(self, ctx: Context) -> None:
        """In the first epoch, whose checkpoint then holds it: who will multiply."""
        self._decide_backends(ctx)

    def _decide_backends(self, ctx: Context) -> None:
        """Who multiplies by masked weights; decided once for all layers of one shape and density."""
        if self._chosen is not None:
            return
        self._chosen = {}
        found: dict[Any, Choice] = {}
        for name, percent in self._percent.items():
            layer = ctx.layers[name]
            assert isinstance(layer, PlannedConv2d)
            can = self._can_have(layer)
            if self.backend != "auto":
                self._chosen[name] = self.backend if self.backend in can else MASKED
                continue
            size, geometry = layer.padded_size(*ctx.spaces.input_sizes[name]), layer.geometry
            key = (layer.weight.shape, geometry, size, percent)
            if key not in found and len(can) > 1:
                images = ctx.batch_size // ctx.micro_batches
                structure = {
                    "percent": round(percent, 6),
                    "pool": self._generic,
                    "scope": self.scope,
                    "balance": self.balance,
                }
                prepare = functools.partial(self._example_backends, can, layer, percent)
                with ctx.untimed():
                    found[key] = fastest(
                        can, prepare, layer, geometry, images, size, ctx.dtype, structure, ctx.hardware_id()
                    )
            if key in found:
                self._choices[name] = found[key].to_json()
            self._chosen[name] = found[key].name if key in found else MASKED

    def _can_have(self, layer: PlannedConv2d) -> list[str]:
        """Who could multiply by a layer's masked weights."""
        can = [MASKED]
        if can_skip(layer.weight.device):
            can.append("skipping")
        if self.scope == "filter" and self._generic == BLOCKS and layer.kernel_size == (3, 3):
            can.append("blocks")
        return can

    def _example_backends(
        self, names: Sequence[str], layer: PlannedConv2d, percent: float
    ) -> tuple[Tensor, dict[str, Backend]]:
        kept = self._example(layer, percent)
        return kept, {name: self._backend(name, kept, layer) for name in names}

    def _example(self, layer: nn.Conv2d, percent: float) -> Tensor:
        """Weights that might stay, as many as will."""
        generator = torch.Generator().manual_seed(0)
        saliency = torch.rand(layer.weight.shape, generator=generator)
        gone = least_important_kernels(saliency, percent, equal_in_filters=self.balance == "filter")
        off = None
        if layer.kernel_size == (3, 3):
            pool = dynamic_pool([saliency]) if self._generic == "dynamic" else generic_pool(int(self._generic))
            numbers = choose_patterns(saliency, pool, one_a_filter=self.scope == "filter")
            off = ~pool[numbers].view(*gone.shape, 3, 3)
        return Dropped(off, gone).kept(layer.weight.detach()).bool()

    def density(self, name: str, ctx: Context) -> Density:
        """The share of weights that stays, of all three products: a masked weight's gradient changes no weight.

        But for what is made of all gradients together, a clipped norm: who skips leaves masked weights out of it.
        """
        if self._masked_from is None or ctx.step < self._masked_from or name not in self._dropped:
            return Density()
        share = self._share(name)
        return Density(share, share, share)

    def overhead(self, name: str, samples: int, ctx: Context) -> float:
        """Operations of the lasso on this layer, or of its mask; mixup's are not counted, which belong to no layer."""
        if name not in self._dropped:
            return 0.0
        weight = _weight(self._ctx.layers[name])
        if self._penalised:
            return penalty_arithmetic(weight, name in self._patterns)
        return float(weight.numel()) if self._masked_from is not None else 0.0

    def _share(self, name: str) -> float:
        """Share of a layer's weights that stays."""
        kernels = self._dropped[name].kernels
        of_kernel = KEPT / POSITIONS if name in self._patterns else 1.0
        return of_kernel * (1 - int(kernels.count_nonzero()) / kernels.numel())

    def _compression_to_be(self) -> float:
        """What the ratios will make of the published measure, before anything is decided."""
        shares = {}
        for name, percent in self._percent.items():
            weight = _weight(self._ctx.layers[name])
            kernels = weight.shape[0] * weight.shape[1]
            gone = kernels_that_go(percent, kernels)
            of_kernel = KEPT / POSITIONS if weight.shape[2:] == (3, 3) else 1.0
            shares[name] = of_kernel * (1 - gone / kernels)
        return compression(self._ctx.model, shares)

    def record(self, ctx: Context) -> Mapping[str, Any]:
        """The stage, and once it is decided the compression and how many kernels took each pattern.

        The first epoch's record, of the epoch in which backends are chosen, has what was measured for that.
        """
        done, chosen = ctx.epochs_done, self._chosen or {}
        choices = {"choices": self._choices} if done <= 1 and self._choices else {}
        if not self._dropped:
            return {"stage": "warm-up", "backends": chosen, **choices}
        taken = torch.zeros(len(self._pool), dtype=torch.int64)
        for name, numbers in self._patterns.items():
            taken += torch.bincount(numbers[~self._dropped[name].kernels].cpu(), minlength=len(taken))
        return {
            "stage": "lasso" if done <= self.hard_prune_epoch else "masked",
            "backends": chosen,
            **choices,
            "compression": compression(ctx.model, {name: self._share(name) for name in self._dropped}),
            "patterns": {
                "".join("1" if kept else "0" for kept in pattern): count
                for pattern, count in zip(self._pool.tolist(), taken.tolist(), strict=True)
            },
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "saliencies": self._saliencies,
            "batches_seen": self._batches_seen,
            "pool": self._pool,
            "patterns": {name: numbers.to(torch.uint8) for name, numbers in self._patterns.items()},
            "kernels": {name: dropped.kernels for name, dropped in self._dropped.items()},
            "masked_from": self._masked_from,
            "backends": self._chosen,
            "choices": self._choices,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._saliencies, self._batches_seen = dict(state["saliencies"]), state["batches_seen"]
        self._pool = state["pool"]
        self._patterns = {name: numbers.long() for name, numbers in state["patterns"].items()}
        self._masked_from, self._chosen = state["masked_from"], state["backends"]
        self._choices = dict(state["choices"])
        if "skipping" in (self._chosen or {}).values() and not can_skip(self._ctx.device):
            raise ValueError(
                "this trial's checkpoint takes kernels that skip weights, which are not to be had here; go on where "
                "they are, or begin anew"
            )
        self._dropped, self._kept, self._backends = {}, {}, {}
        self._enter(state["kernels"])


def compression(model: nn.Module, shares: Mapping[str, float]) -> float:
    """The published measure: weights over those that stay, of all tensors named as a convolution's are.

    So a VGG's normalisation counts, and shortcuts and linear layers do not. Where no tensor has such a name, weights of
    pruned layers count.

    Args:
        model: whose parameters are called `features` or `conv`, as those of this suite are.
        shares: of the weights of each pruned layer that stays, by the layer's name.

    Source: ClickTrain's code.
    """
    tensors = {name: parameter.numel() for name, parameter in model.named_parameters()}
    counted = [name for name in tensors if "conv" in name or "features" in name] or [
        f"{name}.weight" for name in shares
    ]
    left = sum(tensors[name] * shares.get(name.removesuffix(".weight"), 1.0) for name in counted)
    return sum(tensors[name] for name in counted) / left if left else 1.0


def _inner_3x3_convolutions(ctx: Context) -> list[str]:
    """Names of the 3x3 convolutions that do not read the model's input; grouped ones are left alone."""
    return [
        name
        for name, layer in ctx.layers.items()
        if isinstance(layer, nn.Conv2d)
        and layer.kernel_size == (3, 3)
        and layer.groups == 1
        and ctx.spaces.model_input not in ctx.spaces.inputs_of(name)
    ]


def _weight(layer: nn.Module) -> nn.Parameter:
    weight = layer.weight
    assert isinstance(weight, nn.Parameter)
    return weight
