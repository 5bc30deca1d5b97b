"""A vision transformer trained by the suite, compared with a loop that shares no training code with it.

    python -m benchmarks.evidence.plain_vit DIR -o results/NAME

DIR is the folder of a suite with dense trials of `vit_tiny` on CIFAR-10; `benchmarks/evidence/plain_vit.sh` has the
command that trains them. This program reads the recipe and the seeds of these trials, and trains as often with torch
alone: `nn.TransformerEncoderLayer`, its own groups of AdamW, warm-up and cosine, random crops and mirroring, and
torch's autocast where the trials are in bfloat16. It takes only the decoded images from the suite, and which of them
belong to the splits. The random numbers differ, so that the accuracies are two samples, whose means are compared
(Welch's interval). It writes NAME.txt, and NAME.json after every training; the same command continues with the next
one, also while the suite still runs.

`tests/benchmarks/test_plain_vit.py` compares the steps of both for equal weights and batches.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from benchmarks.partial_results import OtherRunError, kept
from reports.data.records import Trial, read
from suite.cost.hardware import available_cores
from suite.recipe import Recipe
from suite.runs.provenance import collect
from suite.subnormals import FLUSH, use_arithmetic
from tasks.images.decoded import load_decoded
from tasks.images.splits import choose_splits

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # of CIFAR-10, as usually quoted
# Fields of a recipe that the plain loop follows; it has no other feature, so that the other fields have these values.
FOLLOWED = {
    *("epochs", "batch_size", "eval_batch_size", "learning_rate", "warmup_epochs", "momentum", "second_momentum"),
    *("weight_decay", "label_smoothing", "clip_norm", "split_seed", "train_images", "test_images", "translate"),
}
FIXED = {"schedule": "cosine", "optimizer": "adamw", "decay_norm_and_bias": False, "flip": True}


class PlainViT(nn.Module):
    """DeiT-Ti from torch's own encoder: width 192, 12 layers of 3 heads, normalisation before each branch."""

    def __init__(self, patch: int, side: int, classes: int) -> None:
        super().__init__()
        self.patch = patch
        self.embedding = nn.Linear(3 * patch * patch, 192)
        self.class_token = nn.Parameter(torch.randn(1, 1, 192) * 1e-6)
        self.positions = nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, 192))
        layer = nn.TransformerEncoderLayer(192, 3, 768, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 12, nn.LayerNorm(192, 1e-6), enable_nested_tensor=False)
        self.head = nn.Linear(192, classes)
        for name, parameter in self.named_parameters():
            if name.startswith("embedding") or "norm" in name or name == "class_token":
                continue
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, 3, H, W)."""
        patches = nn.functional.unfold(images, self.patch, stride=self.patch).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), 1, -1), self.embedding(patches)], dim=1)
        return self.head(self.encoder(tokens + self.positions)[:, 0])


class PlainLoop:
    """Training steps of a model with AdamW, a linear warm-up, half a cosine and clipped gradients.

    Attributes:
        optimizer: The optimizer, with one group of weights that decay and one without.
    """

    def __init__(
        self, model: nn.Module, recipe: Recipe, steps_per_epoch: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self.model, self.recipe, self.dtype = model, recipe, dtype
        kept_whole = [  # by what they are, not by their shape
            parameter
            for module in model.modules()
            for name, parameter in module.named_parameters(recurse=False)
            if isinstance(module, nn.LayerNorm) or name.endswith("bias")
        ]
        ids = set(map(id, kept_whole))
        decayed = [parameter for parameter in model.parameters() if id(parameter) not in ids]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": recipe.weight_decay},
                {"params": kept_whole, "weight_decay": 0.0},
            ],
            lr=recipe.learning_rate,
            betas=(recipe.momentum, recipe.second_momentum),
        )
        warm, total = round(recipe.warmup_epochs * steps_per_epoch), recipe.epochs * steps_per_epoch

        def factor(step: int) -> float:
            if step < warm:
                return step / warm
            return 0.5 + 0.5 * math.cos(math.pi * (step - warm) / (total - warm))

        self._schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)

    def step(self, images: Tensor, labels: Tensor) -> tuple[float, float]:
        """Train on a batch, and return its loss and the learning rate of the step."""
        self.model.train()
        rate = self.optimizer.param_groups[0]["lr"]
        logarithms = self.logits(images).log_softmax(dim=1)
        right = logarithms.gather(1, labels.unsqueeze(1)).mean()
        smoothing = self.recipe.label_smoothing
        loss = -(1 - smoothing) * right - smoothing * logarithms.mean()
        self.optimizer.zero_grad()
        loss.backward()
        if self.recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm)
        self.optimizer.step()
        self._schedule.step()
        return loss.item(), rate

    def logits(self, images: Tensor) -> Tensor:
        """Return logits (N, classes) in float32 of images (N, 3, H, W)."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            return self.model(images).float()


@dataclass(frozen=True)
class Images:
    """Normalised images (N, 3, H, W) and labels of both splits."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor

    def batches(self, recipe: Recipe, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over an epoch of shuffled images, each shifted and mirrored at random; a smaller batch is dropped."""
        border, side = recipe.translate, self.train.shape[-1]
        padded = nn.functional.pad(self.train, (border,) * 4)  # 0 is the mean colour
        for chosen in torch.randperm(len(self.train), generator=generator).split(recipe.batch_size):
            if len(chosen) < recipe.batch_size:
                return
            images = []
            for index in chosen:
                top, left = torch.randint(0, 2 * border + 1, (2,), generator=generator).tolist()
                image = padded[index, :, top : top + side, left : left + side]
                images.append(image.flip(2) if torch.rand((), generator=generator) < 0.5 else image)
            yield torch.stack(images), self.train_labels[chosen]


def train(
    recipe: Recipe, images: Images, patch: int, classes: int, seed: int, dtype: torch.dtype = torch.float32
) -> dict[str, float]:
    """Train a new network, and return its test accuracy and the mean training loss of the last epoch."""
    torch.manual_seed(seed)
    model = PlainViT(patch, images.train.shape[-1], classes)
    loop = PlainLoop(model, recipe, len(images.train) // recipe.batch_size, dtype)
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for epoch in range(recipe.epochs):
        losses = [loop.step(*batch)[0] for batch in images.batches(recipe, generator)]
        print(f"seed {seed}, epoch {epoch + 1}: training loss {np.mean(losses):.4f}", file=sys.stderr, flush=True)
    model.eval()
    with torch.no_grad():
        found = torch.cat([loop.logits(part).argmax(1) for part in images.test.split(recipe.eval_batch_size)])
    accuracy = float((found == images.test_labels).double().mean())
    return {"test_accuracy": accuracy, "train_loss": float(np.mean(losses))}


def recipe_of(trial: Trial) -> Recipe:
    """Return the recipe of a trial.

    Raises:
        ValueError: If the plain loop does not follow it.
    """
    recipe = Recipe(**{k: tuple(v) if isinstance(v, list) else v for k, v in trial.spec["recipe"].items()})
    others = vars(Recipe(epochs=1, batch_size=1, learning_rate=1.0)) | FIXED
    for name, value in vars(recipe).items():
        if name not in FOLLOWED and value != others[name]:
            raise ValueError(f"recipe.{name} is {value}; the plain loop has {others[name]} only")
    return recipe


def images_of(trial: Trial, recipe: Recipe) -> Images:
    """Read the images that a trial used."""
    data, checksum = load_decoded(Path(trial.spec["data_copy"]["path"]))
    if checksum != trial.spec["data_copy"]["checksum"]:
        raise ValueError(f"{trial.name} used other images")
    chosen = choose_splits(data.train_labels, data.test_labels, recipe)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

    def normalized(pixels: np.ndarray[Any, Any]) -> Tensor:
        return (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - mean) / std

    return Images(
        normalized(data.train_images[chosen.train]),
        torch.from_numpy(data.train_labels[chosen.train]),
        normalized(data.test_images[chosen.test]),
        torch.from_numpy(data.test_labels[chosen.test]),
    )


def summary(suite: Mapping[str, Mapping[str, Any]], plain: Mapping[str, Mapping[str, Any]], what: str) -> str:
    """Return the table of accuracies by seed, their means, and the difference of the means with its interval.

    Args:
        suite, plain: `test_accuracy` (a fraction) and `train_loss` by seed.
        what: The line above the table.
    """
    lines = [what, "", f"{'':14} {'test accuracy (%)':>26} {'training loss':>26}"]
    lines.append(f"{'':14} {'suite':>12} {'plain loop':>13} {'suite':>12} {'plain loop':>13}")
    columns: list[list[float]] = []
    for field, factor in (("test_accuracy", 100.0), ("train_loss", 1.0)):
        columns += [[factor * side[seed][field] for seed in sorted(plain)] for side in (suite, plain)]
    for seed, *row in zip(sorted(plain), *columns, strict=True):
        lines.append(f"{f'seed {seed}':14} {row[0]:12.2f} {row[1]:13.2f} {row[2]:12.4f} {row[3]:13.4f}")
    if len(plain) > 1:
        accuracy, loss = difference(*columns[:2]), difference(*columns[2:])
        means = [float(np.mean(column)) for column in columns]
        lines.append(f"{'mean':14} {means[0]:12.2f} {means[1]:13.2f} {means[2]:12.4f} {means[3]:13.4f}")
        lines.append(f"suite - plain  accuracy {accuracy[0]:+.2f} [{accuracy[1]:+.2f}, {accuracy[2]:+.2f}] points, "
                     f"loss {loss[0]:+.4f} [{loss[1]:+.4f}, {loss[2]:+.4f}]")  # fmt: skip
    return "\n".join(lines) + "\n"


def difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return the difference of two means with the ends of its 95 % interval (Welch)."""
    ends = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    return float(np.mean(first) - np.mean(second)), float(ends.low), float(ends.high)


def main() -> int:
    """Train the plain loop for every dense trial of a suite, and write the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the suite with dense trials")
    parser.add_argument("-o", "--out", type=Path, metavar="NAME", required=True, help="path without suffix")
    options = parser.parse_args()
    use_arithmetic(FLUSH)
    torch.set_num_threads(available_cores())
    trials = {int(t.spec["seed"]): t for t in read(options.folder).trials if t.done and t.text("method") == "dense"}
    if not trials:
        parser.error(f"{options.folder} has no finished trial of dense")
    one = next(iter(trials.values()))
    for trial in trials.values():
        if any(trial.spec[name] != one.spec[name] for name in ("recipe", "model", "dtype")):
            parser.error(f"{options.folder} has dense trials with several recipes, models or types")
    if one.spec["model"].partition("[")[0] != "vit_tiny" or set(one.spec["model_parameters"]) != {"patch"}:
        parser.error(f"the trials are of {one.spec['model']}; the plain loop has vit_tiny[patch=N] only")
    patch = int(one.spec["model_parameters"]["patch"]) or 4  # the default for 32 pixels
    try:
        recipe = recipe_of(one)
        images = images_of(one, recipe)
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[one.spec["dtype"]]
        facts = {"model": one.spec["model"], "recipe": one.spec["recipe"], "data": one.text("data_copy")}
        facts["dtype"] = one.spec["dtype"]
        results = kept(options.out.with_suffix(".json"), facts, "results")
    except (ValueError, OtherRunError) as error:
        parser.error(str(error))
    suite, plain = results.part("suite"), results.part("plain")
    for seed, trial in sorted(trials.items()):
        suite[str(seed)] = {
            "test_accuracy": trial.numbers["test_accuracy"],
            "train_loss": trial.epochs[-1]["train_loss"],
            "provenance": dict(trial.provenance),
        }
        if str(seed) not in plain:
            plain[str(seed)] = {**train(recipe, images, patch, 10, seed, dtype), "provenance": collect("cpu")}
    what = (
        f"{one.spec['model']} on {one.text('task')} ({one.text('data_copy')}): {len(images.train):,} training and "
        f"{len(images.test):,} test images, {recipe.epochs} epochs, batches of {recipe.batch_size}, {one.spec['dtype']}"
    )
    text = summary(suite, plain, what)
    options.out.with_suffix(".txt").write_text(text, encoding="utf-8")
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
