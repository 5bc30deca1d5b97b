"""Images per second from the cache of decoded images, compared with torch's `DataLoader` over the files.

    python -m benchmarks.pipeline.bench_images DIR [--size 64] [--workers N] [--images 4096] [--pairs 5] [--json FILE]

DIR is a folder of images in a layout of the task `imagefolder`, for example `~/.cache/pdt-data/imagenette`. Both sides
compute random resized crops of the same distribution, mirroring and normalisation, in batches of 64, with as many
processes or threads as there are cores. Pairs alternate.

    cache          epochs from a complete cache
    first epoch    decoding into the cache, and one epoch from it: training images in random crops, then test images in
                   central crops; against the same epoch of the `DataLoader`
    training only  the same without reading test images; the cache decodes them nevertheless
    step           seconds for a batch from the cache, relative to a training step of resnet18 on it
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2

from suite.choices import build_model
from suite.engine.cost.hardware import available_cores
from suite.engine.cost.interleaved import Ratio, interleaved_ratio, ratio_of
from suite.subnormals import FLUSH, use_arithmetic
from suite.trials.provenance import collect
from tasks.image_files import IMAGENET
from tasks.images.crops import CropBatches
from tasks.images.stored import ImageSource, StoredImages
from tasks.sources.image_cache import store
from tasks.sources.image_tree import ImageTree, read_tree

BATCH, AREA, STORED_SIDE, FIRST_EPOCHS = 64, 0.35, 128, 12
CPU = torch.device("cpu")


def loader(tree: ImageTree, size: int, workers: int, training: bool) -> Any:
    """Return torch's `DataLoader` over the same files: random crops to train, central ones to test."""
    crop: list[nn.Module] = [v2.Resize(_eval_resize(size), antialias=True), v2.CenterCrop(size)]
    if training:
        crop = [v2.RandomResizedCrop(size, scale=(AREA, 1.0), antialias=True), v2.RandomHorizontalFlip()]
    transform = v2.Compose(
        [
            v2.PILToTensor(),
            *crop,
            v2.ToDtype(torch.float32),
            v2.Normalize(IMAGENET.mean, IMAGENET.std),
        ]
    )

    files = tree.train if training else tree.test

    class Files(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> Any:
            file = files[index]
            return transform(default_loader(str(tree.root / file.path))), file.label

    return torch.utils.data.DataLoader(Files(), BATCH, shuffle=training, num_workers=workers, drop_last=training)


def _eval_resize(size: int) -> int:
    return round(size * 8 / 7)


def consume(batches: Any, images: int) -> None:
    """Read at least so many images."""
    seen = 0
    for batch, _ in batches:
        seen += len(batch)
        if seen >= images:
            return


def cached(tree: ImageTree, path: Path, size: int) -> tuple[CropBatches, CropBatches]:
    """Decode a folder into a new cache, and return its training and test splits."""
    checksum = store(tree, path, STORED_SIDE, False)["checksum"]
    train, test = (StoredImages(path, name, checksum) for name in ("train", "test"))
    return _split(train, True, size), _split(test, False, size)


def _split(source: ImageSource, training: bool, size: int) -> CropBatches:
    return CropBatches(
        source,
        np.arange(len(source.labels)),
        size=size,
        eval_resize=_eval_resize(size),
        crop_area=AREA,
        flip=True,
        normalization=IMAGENET,
        device=CPU,
        training=training,
        seed=0,
        drop_last=training,
    )


def main() -> None:
    """Measure all comparisons and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    use_arithmetic(FLUSH)
    torch.set_num_threads(options.workers)
    tree = read_tree(options.folder.expanduser())
    found: dict[str, Any] = {}

    def show(name: str, ratio: Ratio, note: str) -> None:
        found[name] = {**vars(ratio), "note": note}
        print(f"{name:13} {ratio}   {note}", flush=True)

    print(f"{'':13} least median [95 % interval]")
    theirs, their_test = (loader(tree, options.size, options.workers, training) for training in (True, False))
    with tempfile.TemporaryDirectory() as temporary:
        # Decode into a new cache each time.
        seconds: dict[str, list[float]] = {}

        def timed(part: str, run: Callable[[], Any]) -> Any:
            began = time.perf_counter()
            result = run()
            seconds.setdefault(part, []).append(time.perf_counter() - began)
            return result

        for number in range(FIRST_EPOCHS):
            place = Path(temporary) / str(number)
            timed("their training", lambda: consume(theirs, len(tree.train)))
            timed("their test", lambda: consume(their_test, len(tree.test)))
            split, test = timed("decoding", lambda place=place: cached(tree, place, options.size))
            timed("training", lambda split=split: consume(split.epoch(0, BATCH), len(tree.train)))
            timed("test", lambda test=test: consume(test.epoch(0, BATCH), len(tree.test)))
            if number + 1 < FIRST_EPOCHS:
                shutil.rmtree(place)  # the system would write the pixels to the disk during the next rounds

        def total(*parts: str) -> list[float]:
            return [sum(values) for values in zip(*(seconds[part] for part in parts), strict=True)]

        whole = ratio_of(total("their training", "their test"), total("decoding", "training", "test"))
        show("first epoch", whole, "DataLoader / decoding and one epoch, with evaluation")
        only = ratio_of(total("their training"), total("decoding", "training"))
        show("training only", only, "DataLoader / decoding of all files and one epoch, without evaluation")
        rest(options, tree, theirs, split, show)
    if options.json:
        options.json.write_text(json.dumps({"results": found, "provenance": collect(CPU)}, indent=1) + "\n")


def rest(options: argparse.Namespace, tree: ImageTree, theirs: Any, split: CropBatches, show: Any) -> None:
    """Measure epochs from a complete cache, and their share of a training step."""
    epochs = iter(range(1, 1000))
    images = min(options.images, len(tree.train))
    ratio = interleaved_ratio(
        lambda: consume(theirs, images), lambda: consume(split.epoch(next(epochs), BATCH), images), options.pairs
    )
    show(
        "cache", ratio, f"DataLoader / cache: {images / ratio.first_s:,.0f} and {images / ratio.second_s:,.0f} images/s"
    )

    model = build_model("resnet18", (3, options.size, options.size), len(tree.classes))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    batches = split.epoch(0, BATCH)
    batch, labels = next(batches)

    def step() -> None:
        nn.functional.cross_entropy(model(batch), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    share = interleaved_ratio(lambda: next(batches), step, max(options.pairs, 10))
    show("step", share, "batch from the cache / training step of resnet18 in float32")


if __name__ == "__main__":
    main()
