"""SDGP's Fig. 5: the effect of pruning on one output gradient of a network that was trained for one epoch.

Source: McDanel, Dinh, Magallanes, "Accelerating DNN Training with Structured Data Gradient Pruning", ICPR 2022
(arXiv 2202.00774), Sec. III-C.
"""

from __future__ import annotations

import hashlib

import numpy as np
from torch import Tensor

import kernels
from reports.papers.comparison import Comparison
from reports.papers.contract import Outcome, Part, Reproduction, ReproductionData
from reports.papers.figures import gradient_figure
from reports.papers.sdgp import captured_gradient as gradients
from suite.registry import register
from suite.trials.estimates import Estimate, Missing
from suite.trials.folder.reader import Trial
from suite.trials.spec import TrialSpec

ZEROS = "sdgp-fig5-zeros"
QUANTILES = {"5th percentile": 0.05, "median": 0.5, "95th percentile": 0.95}


@register("reproduction", "sdgp-fig5")
class Figure5(Reproduction):
    """SDGP's Fig. 5: one output gradient, dense and pruned to 2:4 in three ways, drawn and measured."""

    title = "SDGP, Fig. 5: an output gradient before and after pruning"
    reference = ZEROS
    parts = (
        Part(
            name="gradient",
            title="a dense network, trained for one epoch",
            methods="dense",
            task="cifar10",
            seeds={"smoke": 1, "quick": 1, "paper": 1},
            overrides={"epochs": 1},
        ),
    )

    def outcome(self, data: ReproductionData) -> Outcome:
        """Run one more backward pass of the trained network, prune its output gradient, and measure the changes."""
        trials = [trial for trial in data.trials[self.parts[0].name].get("dense", ()) if trial.done]
        if not trials:
            return Outcome((self._line("exact zeros, dense", Missing("the dense trial is not done")),))
        spec = data.specs[trials[0].name]  # the first seed, because the figure shows one gradient
        model_file = data.folder / "trials" / spec.trial_id / "model.pt"
        scale = loss_scale(spec, trials[0])
        if isinstance(scale, Missing):
            return Outcome((self._line("exact zeros, dense", scale),))
        captured = gradients.capture(spec, model_file, data.device, scale)
        pruned = gradients.prune(captured.grad, spec.seed)
        sample, group = gradients.loudest_group(captured.grad)
        where = f"layer {captured.layer}, {' x '.join(map(str, captured.grad.shape))}, {captured.grad.dtype}".replace(
            "torch.", ""
        )
        channels = range(group * gradients.M, (group + 1) * gradients.M)
        images = {
            name: grad[sample, channels.start : channels.stop].float().cpu().numpy() for name, grad in pruned.items()
        }
        shown = f"Image {sample} of the batch, channels {channels[0]} to {channels[-1]} of {captured.layer}."
        caption = (
            f"{shown} This group of {gradients.M} channels has the largest sum of magnitudes in one image of the batch."
        )
        if captured.loss_scale != 1:
            caption += f" The loss was multiplied by {captured.loss_scale:g}."
        figure = gradient_figure(
            self.registered_name, "An output gradient, dense and pruned to 2:4", caption, images, channels
        )
        one_epoch = spec.recipe["epochs"] == 1
        epochs = "one epoch" if one_epoch else f"{spec.recipe['epochs']} epochs"
        remarks = (
            f"This is one gradient, so there is no interval: dO of {where}, after {captured.step} steps ({epochs}, "
            f"seed {spec.seed}), for the next training batch of {captured.grad.shape[0]} augmented images. The paper "
            "shows the second convolution of ResNet-18 on ImageNet after the first epoch; ours is the second "
            "convolution of ResNet-9.",
            f"The recipe's whole schedule of learning rates runs within {'that epoch' if one_epoch else 'those epochs'}"
            ". The paper's first epoch is the start of a long training, in which the learning rate still rises.",
            'The paper reports "almost 25 %" zeros of the channels that it draws. It is compared with the share in '
            "the channels and the image drawn here. These were chosen for their large gradients and may have fewer "
            "zeros than others; the share in the whole tensor has its own line.",
            *self._on_the_scale(spec, captured, scale),
        )
        digest = hashlib.sha256(model_file.read_bytes()).hexdigest()[:16]
        return Outcome(
            tuple(self._lines(captured, pruned, images["dense"])),
            figure,
            remarks,
            (
                f"Gradient: of trials/{spec.trial_id}/model.pt (SHA-256 {digest}), {where}",
                f"Pruning: {kernels.backend_report(captured.grad.device)}; random with seed {spec.seed}",
            ),
        )

    def _on_the_scale(self, spec: TrialSpec, captured: gradients.Captured, last: float) -> tuple[str, ...]:
        if spec.dtype != "float16":
            return (f"In {spec.dtype} small gradients do not become 0; in the paper's float16 they do.",)
        return (
            f"The loss was multiplied by {captured.loss_scale:g}, the trial's last loss scale"
            f"{'' if captured.loss_scale == last else f' {last:g}, halved until all gradients were finite'}, and the "
            "gradient is drawn and counted with this factor. The paper does not state its loss scale; without "
            "a scale, more values become 0.",
        )

    def _lines(self, captured: gradients.Captured, pruned: dict[str, Tensor], drawn: np.ndarray) -> list[Comparison]:
        dense = pruned["dense"]
        lines = [
            self._line("exact zeros, dense, drawn channels", _percent(float((drawn == 0).mean())), f"{ZEROS}/dense"),
            self._line("exact zeros, dense", _percent(gradients.zeros(dense))),
        ]
        for name, grad in pruned.items():
            if name == "dense":
                continue
            lines.append(self._line(f"exact zeros, {name}", _percent(gradients.zeros(grad))))
            ratios = gradients.channel_ratios(dense, grad)
            for label, share in QUANTILES.items():
                what = f"sum of magnitudes left in a channel, {name}, {label} of channels"
                lines.append(self._line(what, _percent(float(ratios.quantile(share)))))
            lines.append(
                self._line(f"cosine with the dense gradient, {name}", _one(gradients.cosine(dense, grad)), unit="")
            )
            error = gradients.data_gradient_error(captured, grad)
            lines.append(self._line(f"relative error of the data gradient, {name}", _percent(error)))
        return lines

    def _line(self, quantity: str, ours: Estimate | Missing, published: str = "", unit: str = "%") -> Comparison:
        part = self.parts[0].name
        if not published:
            return Comparison(quantity, unit, part, ours, "measured")
        group, value = self.published.find(published)
        note = f"Published under other conditions: {group.notes[0]}"
        return Comparison(quantity, unit, part, ours, "measured", value, group.kind, group.citation, note=note)


def loss_scale(spec: TrialSpec, trial: Trial) -> float | Missing:
    """Return the last loss scale of a trial: 1, or in float16 the value in the record of its last epoch."""
    if spec.dtype != "float16":
        return 1.0
    scale = trial.epochs[-1].get("loss_scale") if trial.epochs else None
    if not isinstance(scale, (int, float)) or not scale > 0:
        return Missing(
            "the last record in the trial's epochs.jsonl has no loss scale, and float16 underflows without one"
        )
    return float(scale)


def _percent(share: float) -> Estimate:
    return Estimate(100 * share, None, 1)


def _one(value: float) -> Estimate:
    return Estimate(value, None, 1)
