"""SDGP's Fig. 4 and 5: an output gradient of a trained network, pruned in the three ways of the paper.

Source: McDanel, Dinh, Magallanes, "Accelerating DNN Training with Structured Data Gradient Pruning", ICPR 2022
(arXiv 2202.00774), Sec. III.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

import kernels
from kernels.prune.rule import Mode, Scope
from reports import formatting
from reports.data.estimates import Missing
from reports.figures.figure import Figure
from reports.papers.charts import Map, Scale, maps_figure
from reports.papers.comparison import Comparison
from reports.papers.contract import Outcome, Reproduction, ReproductionData
from suite.engine.network.model_files import load_model
from suite.task import DataCopy
from suite.trials.building import task_of
from suite.trials.folder.records import TrialRecord
from suite.trials.spec import TrialSpec

N, M = 2, 4
GROUP = (1.0, 7.0, -3.0, 2.0)
ROWS = 3  # of Fig. 4's matrices
SEED = 0
# Share of the largest magnitudes to clip in Fig. 5. The tail of a gradient would make all other values white.
CLIPPED = 0.02
# Mode and rescaling of the `kernels.PruneRule`. The rescaling is that of the published code.
WAYS: dict[str, tuple[Mode, Scope]] = {
    "random": ("random", "none"),
    "magnitude": ("magnitude", "none"),
    "rescaled": ("magnitude", "sample_channel"),
}
# That of the caption of Fig. 4: each channel keeps its sum of magnitudes over all rows.
IN_THE_CAPTION: dict[str, tuple[Mode, Scope]] = {**WAYS, "rescaled": ("magnitude", "channel")}
QUANTILES = {"5th percentile": 0.05, "median": 0.5, "95th percentile": 0.95}


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
    name, layer = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)][1]
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


def captured_of(data: ReproductionData, trials: list[TrialRecord]) -> Captured | Missing:
    """Capture the gradient of the first seed, because a figure shows one gradient, or return why there is none."""
    if not trials:
        return Missing("the dense trial is not done")
    spec = data.specs[trials[0].name]
    scale = loss_scale(spec, trials[0])
    return scale if isinstance(scale, Missing) else capture(spec, data.model_file(trials[0]), data.device, scale)


def loss_scale(spec: TrialSpec, trial: TrialRecord) -> float | Missing:
    """Return the last loss scale of a trial: 1, or in float16 the value in the record of its last epoch."""
    if spec.dtype != "float16":
        return 1.0
    scale = trial.epochs[-1].get("loss_scale") if trial.epochs else None
    if not isinstance(scale, (int, float)) or not scale > 0:
        return Missing(
            "the last record in the trial's epochs.jsonl has no loss scale, and float16 underflows without one"
        )
    return float(scale)


def prune(grad: Tensor, seed: int, ways: Mapping[str, tuple[Mode, Scope]] = WAYS) -> dict[str, Tensor]:
    """Return the gradient unchanged, and pruned to 2:4 in each of the three ways of the paper."""
    pruned = {name: kernels.prune_nm(grad, kernels.PruneRule(N, M, *way), seed=seed) for name, way in ways.items()}
    return {"dense": grad, **pruned}


def loudest_group(grad: Tensor) -> tuple[int, int]:
    """Return the image and the group of M channels whose magnitudes have the largest sum."""
    sums = grad.float().abs().sum((2, 3))  # (N, K)
    whole = sums.shape[1] // M * M
    groups = sums[:, :whole].unflatten(1, (-1, M)).sum(2)
    image, group = divmod(int(groups.argmax()), groups.shape[1])
    return image, group


def loudest_rows(grad: Tensor) -> Tensor:
    """Return the pixels with the largest magnitudes in the group of channels of `loudest_group`, (3, 4).

    Args:
        grad: Output gradient, (N, K, P, Q), with at least three pixels.
    """
    image, group = loudest_group(grad)
    pixels = grad[image, group * M : group * M + M].float().flatten(1).T  # (P * Q, 4)
    chosen = pixels.abs().sum(1).topk(ROWS).indices.sort().values
    return pixels[chosen].contiguous()


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
    layer, weight = captured.module, captured.module.weight.detach().double()
    geometry: Any = (layer.stride, layer.padding, layer.dilation, layer.groups)
    made = [conv2d_input(captured.input_shape, weight, grad.double(), *geometry) for grad in (captured.grad, pruned)]
    return float((made[1] - made[0]).norm() / made[0].norm())


def small_gradient(page: Reproduction, data: ReproductionData, lines: list[Comparison]) -> Outcome:
    """SDGP's Fig. 4: the three pruning functions on a small gradient, and on the example of the text."""
    group = page.declared.reference
    example = kernels.prune_nm(torch.tensor([GROUP]), kernels.PruneRule(N, M, "magnitude"))[0].tolist()
    for which, value in zip(page.paper.groups[group].values, example, strict=True):
        what = f"{which} element of [1, 7, -3, 2], magnitude 2:4"
        lines.append(page.line(what, value, "counted", unit="", published=f"{group}/{which}"))
    trials = data.done("gradient", "dense")
    captured = captured_of(data, trials)
    if isinstance(captured, Missing):
        return Outcome((*lines, page.line("sum of magnitudes left", captured, "")))
    rows = prune(loudest_rows(captured.grad), SEED, IN_THE_CAPTION)
    dense = rows["dense"].abs().sum(0)
    for name in WAYS:
        shares = (rows[name].abs().sum(0) / dense)[dense > 0]
        kept = shares[shares > 0]
        lines += [
            page.line(f"{quantity}, {name}", 100 * value)
            for quantity, value in (
                ("exact zeros", zeros(rows[name])),
                ("sum of magnitudes left, all channels", float(rows[name].abs().sum() / dense.sum())),
                ("sum of magnitudes left, least of the channels that are kept", float(kept.min())),
                ("sum of magnitudes left, most of the channels that are kept", float(kept.max())),
            )
        ]
    limit = max(float(matrix.abs().max()) for matrix in rows.values()) or 1.0
    write = np.vectorize(lambda value: formatting.plain(10 * value / limit, 1), otypes=[object])
    matrices = {name: matrix.numpy(force=True) for name, matrix in rows.items()}
    maps = [Map(name, matrix, write(matrix)) for name, matrix in matrices.items()]
    figure = maps_figure(
        page.registered_name,
        "Three pixels of an output gradient, dense and pruned to 2:4",
        f"Rows are pixels, columns four neighbouring channels of layer {captured.layer}. Values are in tenths "
        f"of the largest magnitude, {limit:.2g}. Grey: exact zeros.",
        [maps],
        Scale("Output gradient", -limit, limit, "PuOr_r"),
        [f"{one.title}: {int((one.values == 0).sum())} zeros" for one in maps],
        ("Channels", "Pixels"),
    )
    return Outcome(tuple(lines), figure, provenance=(f"Gradient: of trials/{trials[0].name}/model.pt",))


def output_gradient(page: Reproduction, data: ReproductionData, lines: list[Comparison]) -> Outcome:
    """SDGP's Fig. 5: one output gradient, dense and pruned in three ways, drawn and measured."""
    trials = data.done("gradient", "dense")
    captured = captured_of(data, trials)
    if isinstance(captured, Missing):
        return Outcome((page.line("exact zeros, dense", captured),))
    spec, dense = data.specs[trials[0].name], captured.grad
    pruned = prune(dense, spec.seed)
    sample, group = loudest_group(dense)
    channels = range(group * M, (group + 1) * M)
    images = {
        name: grad[sample, channels.start : channels.stop].float().numpy(force=True) for name, grad in pruned.items()
    }
    theirs = page.declared.reference
    note = f"Published under other conditions: {page.paper.groups[theirs].notes[0]}"
    drawn = 100 * float((images["dense"] == 0).mean())
    lines = [
        page.line("exact zeros, dense, drawn channels", drawn, published=f"{theirs}/dense", note=note),
        page.line("exact zeros, dense", 100 * zeros(dense)),
    ]
    for name in WAYS:
        ratios = channel_ratios(dense, pruned[name])
        lines += [
            page.line(f"exact zeros, {name}", 100 * zeros(pruned[name])),
            *(
                page.line(
                    f"sum of magnitudes left in a channel, {name}, {label} of channels",
                    100 * float(ratios.quantile(share)),
                )
                for label, share in QUANTILES.items()
            ),
            page.line(f"cosine with the dense gradient, {name}", cosine(dense, pruned[name]), unit=""),
            page.line(
                f"relative error of the data gradient, {name}", 100 * data_gradient_error(captured, pruned[name])
            ),
        ]
    shape = f"{' x '.join(map(str, dense.shape))}, {dense.dtype}".replace("torch.", "")
    where = f"layer {captured.layer}, {shape}"
    digest = hashlib.sha256(data.model_file(trials[0]).read_bytes()).hexdigest()[:16]
    provenance = (
        f"Gradient: of trials/{spec.trial_id}/model.pt (SHA-256 {digest}), {where}",
        f"Pruning: {kernels.backend_report(dense.device)}; random with seed {spec.seed}",
    )
    caption = (
        f"Image {sample} of the batch, channels {channels[0]} to {channels[-1]} of {captured.layer}. This group of {M} "
        f"channels has the largest sum of magnitudes in one image of the batch."
    )
    if captured.loss_scale != 1:
        caption += f" The loss was multiplied by {captured.loss_scale:g}."
    figure = _images(page.registered_name, caption, images, channels)
    return Outcome(tuple(lines), figure, _remarks(spec, captured, where, trials[0]), provenance)


def _images(name: str, caption: str, images: Mapping[str, np.ndarray], channels: range) -> Figure:
    magnitudes = np.abs(images["dense"][images["dense"] != 0])
    limit = float(np.quantile(magnitudes, 1 - CLIPPED)) if magnitudes.size else 1.0
    return maps_figure(
        name,
        "An output gradient, dense and pruned to 2:4",
        f"{caption} Grey: exact zeros. The largest {100 * CLIPPED:.0f} % of the dense magnitudes are clipped.",
        [
            [Map(f"channel {channel}", image) for channel, image in zip(channels, stack, strict=True)]
            for stack in images.values()
        ],
        Scale("Output gradient", -limit, limit, "PuOr_r"),
        [f"{label}: {100 * float(np.mean(stack == 0)):.0f} % zeros" for label, stack in images.items()],
        row_labels=[*images],
    )


def _remarks(spec: TrialSpec, captured: Captured, where: str, trial: TrialRecord) -> tuple[str, ...]:
    count = spec.recipe["epochs"]
    epochs, those = ("one epoch", "that epoch") if count == 1 else (f"{count} epochs", "those epochs")
    remarks = (
        f"This is one gradient, so there is no interval: dO of {where}, after {captured.step} steps ({epochs}, "
        f"seed {spec.seed}), for the next training batch of {captured.grad.shape[0]} augmented images. The paper "
        "shows the second convolution of ResNet-18 on ImageNet after the first epoch; ours is the second "
        "convolution of ResNet-9.",
        f"The recipe's whole schedule of learning rates runs within {those}. The paper's first epoch is the start of a "
        "long training, in which the learning rate still rises.",
    )
    if spec.dtype != "float16":
        return (*remarks, f"In {spec.dtype} small gradients do not become 0; in the paper's float16 they do.")
    last = loss_scale(spec, trial)
    halved = "" if captured.loss_scale == last else f" {last:g}, halved until all gradients were finite"
    return (
        *remarks,
        f"The loss was multiplied by {captured.loss_scale:g}, the trial's last loss scale{halved}, and the gradient is "
        "drawn and counted with this factor. The paper does not state its loss scale; without a scale, more values "
        "become 0.",
    )
