"""SDGP's Fig. 4: the three pruning functions on a small gradient, and on the example of the text.

Source: McDanel, Dinh, Magallanes, "Accelerating DNN Training with Structured Data Gradient Pruning", ICPR 2022
(arXiv 2202.00774), Sec. III-B.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.papers.comparison import Comparison
from reports.papers.contract import Outcome, Reproduction, ReproductionData
from reports.papers.figures import matrices_figure
from reports.papers.sdgp.gradient import Figure5, M, N, capture, loss_scale, loudest_group, zeros
from reports.papers.trial_values import done, line, model_file
from suite.registry import register
from suite.trials.estimates import Estimate, Missing

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLE = "sdgp-fig4-example"
GROUP = (1.0, 7.0, -3.0, 2.0)
ROWS = 3  # of the figure's matrices
SEED = 0


def example() -> list[float]:
    """Return the group of the paper's text, pruned to 2:4 by magnitude."""
    import torch

    import kernels

    values: list[float] = kernels.prune_nm(torch.tensor([GROUP]), kernels.PruneRule(N, M, "magnitude"))[0].tolist()
    return values


def pruned_rows(rows: Tensor) -> dict[str, Tensor]:
    """Return a matrix of pixels and channels, dense and pruned to 2:4 in the three ways of the figure.

    Rescaling is that of the figure's caption: each channel keeps its sum of magnitudes over all rows.

    Args:
        rows: Output gradient of some pixels, (rows, 4).
    """
    import kernels

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
                f"{place} element of [1, 7, -3, 2], magnitude 2:4",
                part,
                Estimate(value, None, 1),
                "counted",
                unit="",
                published=f"{EXAMPLE}/{place}",
                among=self.published,
            )
            for place, value in zip(self.published.group(EXAMPLE).values, example(), strict=True)
        ]
        trials = done(data, part, "dense")
        if not trials:
            return Outcome((*lines, line("sum of magnitudes left", part, Missing("the dense trial is not done"), "")))
        spec, scale = data.specs[trials[0].name], loss_scale(data.specs[trials[0].name], trials[0])
        if isinstance(scale, Missing):
            return Outcome((*lines, line("sum of magnitudes left", part, scale, "")))
        captured = capture(spec, model_file(data, trials[0]), data.device, scale)
        found = pruned_rows(loudest_rows(captured.grad))
        lines += self._lines(part, found)
        figure = matrices_figure(
            self.registered_name,
            "Three pixels of an output gradient, dense and pruned to 2:4",
            f"Rows are pixels, columns four neighbouring channels of layer {captured.layer}.",
            {name: rows.cpu().numpy() for name, rows in found.items()},
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
                ("exact zeros", zeros(found[name])),
                ("sum of magnitudes left, all channels", float(found[name].abs().sum() / dense.sum())),
                ("sum of magnitudes left, least of the channels that are kept", float(kept.min())),
                ("sum of magnitudes left, most of the channels that are kept", float(kept.max())),
            ):
                lines.append(line(f"{quantity}, {name}", part, Estimate(100 * value, None, 1), "measured"))
        return lines
