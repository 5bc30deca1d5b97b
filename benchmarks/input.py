"""Images per second of the task `imagefolder`, compared with torch's `DataLoader` over the same files.

    python -m benchmarks.input DIR [--size 64] [--workers N] [--images 4096] [--pairs 5] [--json FILE]

DIR is a folder with `train/` and `val/` or `test/`, for example `~/.cache/pdt-data/imagenette`. Both sides compute
random resized crops of the same distribution, mirroring and normalisation, in batches of 64, with as many processes or
threads as there are cores. Pairs alternate.

    cache        epochs from a complete cache
    files        epochs that decode the files (`cache=off`)
    step         seconds for a batch from the cache, relative to a training step of resnet18 on it
    first epoch  decoding into the cache, and one epoch from it: training images in random crops, then test images in
                 central crops
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benchmarks.measured import Results, enter_trial_environment
from suite.choices import TaskChoice, build_model
from suite.engine.cost.hardware import available_cores
from suite.engine.cost.interleaved import interleaved_ratio
from suite.errors import UsageError
from suite.task import Splits
from tasks.image_files import IMAGENET

BATCH, AREA = 64, 0.35
CPU = torch.device("cpu")


def loader(folder: Path, size: int, workers: int, training: bool) -> DataLoader[Any]:
    """Return torch's `DataLoader` over a split: random crops to train, central ones to test."""
    crop: list[nn.Module] = [v2.Resize(round(size * 8 / 7), antialias=True), v2.CenterCrop(size)]
    if training:
        crop = [v2.RandomResizedCrop(size, scale=(AREA, 1.0), antialias=True), v2.RandomHorizontalFlip()]
    pixels = [v2.ToDtype(torch.float32), v2.Normalize(IMAGENET.mean, IMAGENET.std)]
    images = ImageFolder(str(folder), v2.Compose([v2.PILToTensor(), *crop, *pixels]))
    return DataLoader(images, BATCH, shuffle=training, num_workers=workers, drop_last=training)


def splits(folder: Path, size: int, cache: str) -> Splits:
    """Return the splits of the task, after decoding what its cache lacks."""
    task = TaskChoice.read(f"imagefolder[image_size={size},crop_area={AREA},cache={cache}]").build()
    recipe = task.recipe("quick")
    return task.load(task.prepare(folder, "quick", recipe), recipe, 0, CPU)


def consume(batches: Iterable[Any], images: int = 2**60) -> None:
    """Read at least so many images."""
    for batch, _ in batches:
        images -= len(batch)
        if images <= 0:
            return


def main() -> None:
    """Measure all comparisons and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--size", type=int, default=64, help="of the network's images (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=available_cores(), help="default: %(default)s")
    parser.add_argument("--images", type=int, default=4096, help="of an epoch (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--json", metavar="FILE", type=Path, help="file for the results")
    typed = parser.parse_args()
    torch.set_num_threads(typed.workers)
    typed.folder = typed.folder.expanduser().resolve()
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home  # of the cache
        try:
            measure(typed, Path(home), Results(CPU, typed.json))
        except UsageError as error:
            parser.error(str(error))


def measure(typed: argparse.Namespace, home: Path, results: Results) -> None:
    """Measure all comparisons.

    Raises:
        UsageError: The folder has no images.
    """
    folder, size, pairs, epochs = typed.folder, typed.size, typed.pairs, itertools.count(1)
    stored, files = (splits(folder, size, cache) for cache in ("on", "off"))
    tests = next(folder / name for name in ("val", "test") if (folder / name).is_dir())
    theirs, their_tests = loader(folder / "train", size, typed.workers, True), loader(tests, size, typed.workers, False)
    images = min(typed.images, stored.train.num_samples)

    for name, ours in (("cache", stored), ("files", files)):
        read = ours.train.epoch
        ratio = interleaved_ratio(
            lambda: consume(theirs, images), lambda read=read: consume(read(next(epochs), BATCH), images), pairs
        )
        results.add(f"{name}: DataLoader / ours, an image", ratio, images)

    model = build_model("resnet18", (3, size, size), len(theirs.dataset.classes))
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    batches = itertools.chain.from_iterable(stored.train.epoch(next(epochs), BATCH) for _ in itertools.count())
    batch, labels = next(batches)

    def step() -> None:
        nn.functional.cross_entropy(model(batch), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    share = interleaved_ratio(lambda: next(batches), step, pairs)
    results.add("step: batch from the cache / step of resnet18", share)

    def first_epoch() -> None:
        shutil.rmtree(home / ".cache")
        own = splits(folder, size, "on")
        consume(own.train.epoch(0, BATCH))
        consume(own.test.epoch(0, BATCH))

    whole = interleaved_ratio(lambda: (consume(theirs), consume(their_tests)), first_epoch, pairs)
    results.add("first epoch: DataLoader / decoding and one epoch", whole)


if __name__ == "__main__":
    enter_trial_environment()
    main()
