"""SDGP's Fig. 4: the three pruning functions on a small gradient, and on the example of the text.

Source: McDanel, Dinh, Magallanes, "Accelerating DNN Training with Structured Data Gradient Pruning", ICPR 2022
(arXiv 2202.00774), Sec. III-B.
"""

from __future__ import annotations

from torch import Tensor

from reports.papers.comparison import Comparison
from reports.papers.contract import Outcome, Reproduction, ReproductionData
from reports.papers.figures import matrices_figure
from reports.papers.sdgp import captured_gradient as gradients
from reports.papers.sdgp.gradient import Figure5, loss_scale
from reports.papers.trial_values import done, line, model_file
from suite.registry import register
from suite.trials.estimates import Estimate, Missing

EXAMPLE = "sdgp-fig4-example"


@register("reproduction", "sdgp-fig4")
class Figure4(Reproduction):
    """SDGP's Fig. 4: the three pruning functions on three pixels of a gradient, and the example of the text."""

    title = "SDGP, Fig. 4: the pruning functions on a small gradient"
    reference = EXAMPLE
    parts = Figure5.parts  # the same trial

    def outcome(self, data: ReproductionData) -> Outcome:
        part = self.parts[0].name
        lines = [
            line(
                f"{which} element of [1, 7, -3, 2], magnitude 2:4",
                part,
                Estimate(value, None, 1),
                "counted",
                unit="",
                published=f"{EXAMPLE}/{which}",
                among=self.published,
            )
            for which, value in zip(self.published.group(EXAMPLE).values, gradients.example(), strict=True)
        ]
        trials = done(data, part, "dense")
        if not trials:
            return Outcome((*lines, line("sum of magnitudes left", part, Missing("the dense trial is not done"), "")))
        spec, scale = data.specs[trials[0].name], loss_scale(data.specs[trials[0].name], trials[0])
        if isinstance(scale, Missing):
            return Outcome((*lines, line("sum of magnitudes left", part, scale, "")))
        captured = gradients.capture(spec, model_file(data, trials[0]), data.device, scale)
        matrices = gradients.pruned_rows(gradients.loudest_rows(captured.grad))
        lines += self._lines(part, matrices)
        figure = matrices_figure(
            self.registered_name,
            "Three pixels of an output gradient, dense and pruned to 2:4",
            f"Rows are pixels, columns four neighbouring channels of layer {captured.layer}.",
            {name: rows.cpu().numpy() for name, rows in matrices.items()},
        )
        remarks = (
            "The tensors of the figure are only in the picture. Ours are the three pixels with the largest gradients "
            "in the group of channels that sdgp-fig5 draws.",
            "Rescaling is that of the figure's caption, which preserves the sum of magnitudes of each channel over "
            "batch and pixels. The published code rescales within each image, and so does sdgp here unless scope is "
            "set. A channel of which nothing is kept cannot be rescaled.",
            "By the caption, the example [0, 7, -3, 0] is not changed by rescaling, as it is the only pixel. If each "
            "group kept its own sum, it would be [0, 9.1, -3.9, 0].",
        )
        return Outcome(tuple(lines), figure, remarks, (f"Gradient: of trials/{spec.trial_id}/model.pt",))

    def _lines(self, part: str, found: dict[str, Tensor]) -> list[Comparison]:
        dense = found["dense"].abs().sum(0)
        lines = []
        for name in ("random", "magnitude", "rescaled"):
            shares = (found[name].abs().sum(0) / dense)[dense > 0]
            kept = shares[shares > 0]
            for quantity, value in (
                ("exact zeros", gradients.zeros(found[name])),
                ("sum of magnitudes left, all channels", float(found[name].abs().sum() / dense.sum())),
                ("sum of magnitudes left, least of the channels that are kept", float(kept.min())),
                ("sum of magnitudes left, most of the channels that are kept", float(kept.max())),
            ):
                lines.append(line(f"{quantity}, {name}", part, Estimate(100 * value, None, 1), "measured"))
        return lines
