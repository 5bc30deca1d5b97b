"""An output gradient of a trained network, pruned in the three ways of SDGP's paper, for its Fig. 4 and 5."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

import kernels
from kernels.prune.rule import Mode, Scope
from suite.engine.network.model_files import load_model
from suite.task import DataCopy
from suite.trials.building import task_of
from suite.trials.spec import TrialSpec

N, M = 2, 4
GROUP = (1.0, 7.0, -3.0, 2.0)
ROWS = 3  # of the figure's matrices
SEED = 0
# Mode and rescaling of the `kernels.PruneRule` for each row of the figure. The rescaling is that of the published code.
WAYS: dict[str, tuple[Mode, Scope]] = {
    "random": ("random", "none"),
    "magnitude": ("magnitude", "none"),
    "rescaled": ("magnitude", "sample_channel"),
}


@dataclass(frozen=True)
class Captured:
    """Captured gradient of one convolution in one backward pass.

    Attributes:
        layer: Name of the convolution.
        module: The convolution.
        step: Number of optimizer steps that the network was trained for.
        grad: Output gradient times `loss_scale`, (N, K, P, Q), in the dtype of the backward pass.
        input_shape: Shape of the input, (N, C, H, W).
        loss_scale: Factor of the loss.
    """

    layer: str
    module: nn.Conv2d
    step: int
    grad: Tensor
    input_shape: torch.Size
    loss_scale: float = 1.0


def capture(spec: TrialSpec, model_file: Path, device_name: str, scale: float = 1.0) -> Captured:
    """Capture the output gradient of the second convolution for the batch that follows the last of the trial.

    The pass is that of a training step: batch statistics, the loss of the recipe, and the dtype and loss scale of the
    trial. Like training after a skipped step, the function halves the scale until all gradients are finite.

    Args:
        spec: Spec of a finished trial.
        model_file: Path of its `model.pt`.
        device_name: Device to compute on.
        scale: Factor of the loss.
    """
    device, recipe = torch.device(device_name), spec.make_recipe()
    train = task_of(spec).load(DataCopy(**spec.data_copy), recipe, spec.seed, device).train
    model: Any = load_model(model_file)
    model = model.to(device).to(memory_format=torch.channels_last).train()
    convolutions = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)]
    name, layer = convolutions[1]
    held: dict[str, Any] = {}

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        held["input_shape"] = inputs[0].shape
        output.register_hook(lambda grad: held.__setitem__("grad", grad.detach().clone()))

    handle = layer.register_forward_hook(keep)
    images, labels = next(iter(train.epoch(recipe.epochs, recipe.batch_size)))
    dtype = getattr(torch, spec.dtype)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        logits = model(images)
    loss = F.cross_entropy(logits.float(), labels, label_smoothing=recipe.label_smoothing)
    used = scale
    while True:
        model.zero_grad()
        (loss * used).backward(retain_graph=True)
        finite = all(bool(one.grad.isfinite().all()) for one in model.parameters() if one.grad is not None)
        if finite or used <= 1:
            break
        used /= 2
    handle.remove()
    step = recipe.epochs * train.steps_per_epoch(recipe.batch_size)
    return Captured(name, layer, step, held["grad"], held["input_shape"], used)


def prune(grad: Tensor, seed: int) -> dict[str, Tensor]:
    """Return the gradient unchanged, and pruned to 2:4 in each of the three ways of the paper."""
    pruned = {name: kernels.prune_nm(grad, kernels.PruneRule(N, M, *way), seed=seed) for name, way in WAYS.items()}
    return {"dense": grad, **pruned}


def loudest_group(grad: Tensor) -> tuple[int, int]:
    """Return the image and the group of M channels whose magnitudes have the largest sum."""
    sums = grad.float().abs().sum((2, 3))  # (N, K)
    whole = sums.shape[1] // M * M
    groups = sums[:, :whole].unflatten(1, (-1, M)).sum(2)
    image, group = divmod(int(groups.argmax()), groups.shape[1])
    return image, group


def zeros(grad: Tensor) -> float:
    """Return the share of exact zeros."""
    return float((grad == 0).double().mean())


def channel_ratios(dense: Tensor, pruned: Tensor) -> Tensor:
    """Return each channel's sum of magnitudes, pruned over dense, without channels that are all zero, (channels,)."""
    before, after = (grad.double().abs().sum((0, 2, 3)) for grad in (dense, pruned))
    return (after / before)[before > 0]


def cosine(dense: Tensor, pruned: Tensor) -> float:
    """Return the cosine of the angle between two gradients, each flattened to a vector."""
    before, after = dense.double().flatten(), pruned.double().flatten()
    return float(before @ after / (before.norm() * after.norm()))


def data_gradient_error(captured: Captured, pruned: Tensor) -> float:
    """Return the norm of the change in the data gradient over the norm of the dense data gradient, in float64."""
    layer = captured.module
    made = [
        conv2d_input(
            captured.input_shape,
            layer.weight.detach().double(),
            grad.double(),
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
        )
        for grad in (captured.grad, pruned)
    ]
    return float((made[1] - made[0]).norm() / made[0].norm())


def example() -> list[float]:
    """Return the group of the paper's text, pruned to 2:4 by magnitude."""
    values: list[float] = kernels.prune_nm(torch.tensor([GROUP]), kernels.PruneRule(N, M, "magnitude"))[0].tolist()
    return values


def pruned_rows(rows: Tensor) -> dict[str, Tensor]:
    """Return a matrix of pixels and channels, dense and pruned to 2:4 in the three ways of the figure.

    Rescaling follows the figure's caption: each channel keeps its sum of magnitudes over all rows.

    Args:
        rows: Output gradient of some pixels, (rows, 4).
    """
    ways = {
        "random": kernels.PruneRule(N, M, "random"),
        "magnitude": kernels.PruneRule(N, M, "magnitude"),
        "rescaled": kernels.PruneRule(N, M, "magnitude", "channel"),
    }
    return {"dense": rows, **{name: kernels.prune_nm(rows, rule, seed=SEED) for name, rule in ways.items()}}


def loudest_rows(grad: Tensor) -> Tensor:
    """Return the pixels with the largest magnitudes in the group of channels of `loudest_group`, (3, 4).

    Args:
        grad: Output gradient, (N, K, P, Q), with at least three pixels.
    """
    image, group = loudest_group(grad)
    pixels = grad[image, group * M : group * M + M].float().flatten(1).T  # (P * Q, 4)
    chosen = pixels.abs().sum(1).topk(ROWS).indices.sort().values
    return pixels[chosen].contiguous()
