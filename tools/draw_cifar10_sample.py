"""Create the sample of CIFAR-10 in the package, `tasks/data/cifar10_sample.npz`, and its description.

    python tools/draw_cifar10_sample.py ~/.cache/pdt-data/cifar10

The source is a folder of JPEG files, `SOURCE/{train,test}/CLASS/*.jpg`, which are copied byte for byte. After drawing a
new sample, write the printed checksum into `tasks/sources/cifar10_sample.py`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tasks.cifar10 import CLASSES  # noqa: E402
from tasks.images.splits import stratified_order  # noqa: E402
from tasks.sources.cifar10_sample import NAME, sample_checksum  # noqa: E402
from tasks.sources.image_folder import ImageFolder  # noqa: E402

PAGE = """# A sample of CIFAR-10

`{name}` holds {train:,} training and {test:,} test images of CIFAR-10, equally many of each class, drawn at random
from the 50,000 and 10,000 of the data set.

- Origin: CIFAR-10, Alex Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009,
  <https://www.cs.toronto.edu/~kriz/cifar.html>.
- Copy: re-encoded as JPEG, quality 75, chroma subsampled 4:2:0. The images therefore differ from the published ones,
  and accuracies on them must not be compared with published accuracies.
- Drawn by `tools/draw_cifar10_sample.py` with seed {seed}: a balanced random choice among each split's files; in the
  file they are ordered by class and, within a class, by name.
- Contents, a NumPy archive without pickled objects: `jpeg` (concatenated JPEG files, training images first),
  `lengths` (number of bytes of each file), `labels` (0 .. 9 for {classes}), `num_train`.
- SHA-256 over `jpeg`, `lengths` and `labels` (both as little-endian int64) and `num_train` (in decimal):
  `{checksum}`. It is verified whenever the sample is read.
- Use: `--preset smoke`, which shows that everything runs. With so few images, results say nothing about methods.
"""


def main() -> int:
    """Draw the images, write the files, and print the checksum."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("source", type=Path, help="folder with train/CLASS/*.jpg and test/CLASS/*.jpg")
    parser.add_argument("--train", type=int, default=2000, help="number of training images")
    parser.add_argument("--test", type=int, default=1000, help="number of test images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "tasks" / "data")
    arguments = parser.parse_args()

    folder = ImageFolder(arguments.source.expanduser(), CLASSES, side=32)
    chosen = []
    for split, count in (("train", arguments.train), ("test", arguments.test)):
        files = folder.files[split]
        order = stratified_order(np.array([file.label for file in files], dtype=np.int64), arguments.seed)
        chosen += [files[position] for position in np.sort(order[:count])]

    contents = [Path(file.path).read_bytes() for file in chosen]
    jpeg = np.frombuffer(b"".join(contents), dtype=np.uint8)
    lengths = np.array([len(content) for content in contents], dtype=np.uint16)
    labels = np.array([file.label for file in chosen], dtype=np.uint8)
    checksum = sample_checksum(jpeg, lengths, labels, arguments.train)

    # Compressed: most of such a small JPEG file is tables that all of them share.
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / NAME
    np.savez_compressed(path, jpeg=jpeg, lengths=lengths, labels=labels, num_train=np.array(arguments.train))
    page = PAGE.format(
        name=NAME,
        train=arguments.train,
        test=arguments.test,
        seed=arguments.seed,
        classes=", ".join(CLASSES),
        checksum=checksum,
    )
    path.with_suffix(".md").write_text(page, encoding="utf-8")
    print(f"{path}: {path.stat().st_size:,} bytes\nSHA256 = {checksum!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
