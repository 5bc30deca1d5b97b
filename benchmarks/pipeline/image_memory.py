"""Memory of the task `imagefolder`: while the cache is written, and in an epoch from it.

    python -m benchmarks.pipeline.image_memory [--images 200000] [--side 32] [--folder DIR] [--json FILE]

A folder of as many JPEG files is generated, of which 90 % are training images. The files are links to 64 different
images, so that 200,000 files of 32 pixels and their cache take about 0.7 GB in a temporary folder in DIR, which is
removed at the end. Each phase runs in a process of its own, with its children, and is observed every 0.2 s:

    before     private memory after the imports, in MB
    private    peak of private memory: what no other process shares (the sum of `Pss_Anon`)
    growth     private memory above that before, and the same per image
    resident   peak of the resident set without the pages of the cache (the sum of `Rss`)
    share      peak of the proportional set size without the pages of the cache (the sum of `Pss`)
    cache      peak of the pages of the cache in memory; the system drops them when memory is short

Linux only.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import torch

from suite.engine.cost.hardware import available_cores
from suite.task import DataCopy
from suite.trials.provenance import collect
from tasks.imagefolder import ImageFolderTask

DIFFERENT, CLASSES, TEST_SHARE, BATCH = 64, 10, 0.1, 64
INTERVAL_S = 0.2
PHASES = ("build", "epoch")
READY = "imports are done"
MB = 1e6


@dataclass(frozen=True)
class Memory:
    """Peaks in bytes of a process and its children."""

    private: int = 0
    resident: int = 0
    share: int = 0
    cache: int = 0

    def peak(self, other: Memory) -> Memory:
        """Return the larger value of each."""
        return Memory(*(max(pair) for pair in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Phase:
    """What was measured of a phase.

    Attributes:
        before: Private memory after the imports, in bytes.
        peak: Peaks until the end.
        images: Number of images of the folder.
        seconds: Duration after the imports.
    """

    before: int
    peak: Memory
    images: int
    seconds: float

    @property
    def growth(self) -> int:
        """Private memory in bytes above that before."""
        return self.peak.private - self.before


def generate(folder: Path, images: int, side: int) -> None:
    """Write a folder in the layout of the task `imagefolder`, whose files are links to a few different images."""
    from PIL import Image

    random = np.random.RandomState(0)
    sources = []
    for number in range(DIFFERENT):
        buffer = io.BytesIO()
        Image.fromarray(random.randint(0, 256, (side, side, 3)).astype(np.uint8)).save(buffer, "JPEG", quality=50)
        path = folder / f"{number}.jpg"
        path.write_bytes(buffer.getvalue())
        sources.append(path)
    for number in range(images):
        split = "val" if number % round(1 / TEST_SHARE) == 0 else "train"
        target = folder / "images" / split / f"class{number // round(1 / TEST_SHARE) % CLASSES}"
        if number < 2 * CLASSES * round(1 / TEST_SHARE):
            target.mkdir(parents=True, exist_ok=True)
        os.link(sources[number % DIFFERENT], target / f"image_{number:08d}.jpg")


def run_phase(phase: str, folder: Path, side: int) -> None:
    """Run a phase in this process, which another observes."""
    task = ImageFolderTask()
    recipe = replace(task.recipe("quick"), image_size=side, batch_size=BATCH)
    import torchvision.transforms.v2.functional  # noqa: F401  before the measurement, like all imports

    torch.set_num_threads(available_cores())
    state = folder / "copy.json"
    print(READY, flush=True)
    if phase == "build":
        copy = task.prepare(folder / "images", "quick", recipe)
        state.write_text(json.dumps(asdict(copy)))
        return
    copy = DataCopy(**json.loads(state.read_text()))
    for _ in task.load(copy, recipe, 0, torch.device("cpu")).train.epoch(0, BATCH):
        pass


def observe(process: psutil.Process) -> Memory:
    """Return the present memory of a process and its children; zeros when it has ended."""
    total = np.zeros(4, dtype=np.int64)
    for one in (process, *process.children(recursive=True)):
        try:
            for mapping in one.memory_maps(grouped=False):
                of_cache = mapping.path.endswith("pixels.bin")
                total += (0, 0, 0, mapping.rss) if of_cache else (0, mapping.rss, mapping.pss, 0)
            total[0] += _private(one.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError, ProcessLookupError):
            continue
    return Memory(*total.tolist())


def _private(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    return 0


def measure(folder: Path, images: int, side: int) -> dict[str, Phase]:
    """Generate a folder of images, and measure each phase.

    Raises:
        RuntimeError: A phase failed.
    """
    generate(folder, images, side)
    found = {}
    for phase in PHASES:
        command = [sys.executable, "-m", __spec__.name, "--run", phase, "--folder", str(folder), "--side", str(side)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            if child.stdout.readline().strip() != READY:
                raise RuntimeError(child.communicate()[1])
            process = psutil.Process(child.pid)
            before, peak, began = observe(process), Memory(), time.perf_counter()
            while child.poll() is None:
                peak = peak.peak(observe(process))
                time.sleep(INTERVAL_S)
            seconds = time.perf_counter() - began
            if child.returncode:
                raise RuntimeError(child.communicate()[1])
        found[phase] = Phase(before.private, peak, images, seconds)
    return found


def main() -> None:
    """Measure both phases and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", choices=PHASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_phase(options.run, options.folder, options.side)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        found = measure(Path(temporary), options.images, options.side)
    print(f"{options.images:,} images of {options.side} pixels; MB")
    print("phase   before  private   growth  per image  resident    share    cache  seconds")
    for name, phase in found.items():
        peak = phase.peak
        print(
            f"{name:6} {phase.before / MB:7.0f} {peak.private / MB:8.0f} {phase.growth / MB:8.0f} "
            f"{phase.growth / phase.images:8.0f} B {peak.resident / MB:9.0f} {peak.share / MB:8.0f} "
            f"{peak.cache / MB:8.0f} {phase.seconds:8.0f}"
        )
    if options.json:
        results = {name: asdict(phase) for name, phase in found.items()}
        provenance = collect(torch.device("cpu"))
        options.json.write_text(json.dumps({"results": results, "provenance": provenance}, indent=1) + "\n")


if __name__ == "__main__":
    main()
