"""Crops that NVIDIA DALI computes, on the CPU here, compared with those of torchvision; and what is refused."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_trials import image_folder
from PIL import Image
from scipy.ndimage import gaussian_filter

from suite.errors import UsageError
from suite.recipe import Recipe
from tasks.images.cutting import Cuts, TorchvisionCutter
from tasks.images.dali import DaliCutter, check_dali
from tasks.sources.image_cache import FileImages
from tasks.sources.image_tree import read_tree

CPU = torch.device("cpu")
DALI: dict[str, Any] = {"image_size": 32, "cache": "off", "decoder": "dali"}
TASK = image_folder(**DALI)
RECIPE = replace(TASK.recipe("quick"), batch_size=4, drop_last=False)
LEVELS = 4  # by which a pixel may differ: DALI rounds after each of two passes


@pytest.fixture
def dali() -> None:
    pytest.importorskip("nvidia.dali", reason="needs the extra [dali13] or [dali12]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG files in colour and grey, of both orientations, some rotated by metadata; and PNG files with a palette."""
    folder = tmp_path_factory.mktemp("photographs")
    random = np.random.RandomState(0)
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for number in range(5):
                shape = (90, 61, 3) if number % 2 else (64, 97, 3)
                smooth = gaussian_filter(random.randint(0, 256, shape).astype(float), (3, 3, 0))
                low, high = smooth.min(), smooth.max()
                image = Image.fromarray(((smooth - low) / (high - low) * 255).astype(np.uint8))
                file = folder / split / name / f"{number}.jpg"
                rotated = Image.Exif()
                rotated[0x0112] = 6
                if number == 2:
                    image.convert("L").save(file, quality=90)
                elif number == 3:
                    image.save(file, quality=90, progressive=True, exif=rotated)
                elif number == 4:
                    image.quantize(32).save(file.with_suffix(".png"))
                else:
                    image.save(file, quality=90, subsampling=2 * number)
    return folder


def pixels(folder: Path, split: str, recipe: Recipe = RECIPE, **changes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images, in levels of 0 to 255, and labels of one epoch; `changes` are parameters of the task."""
    task = image_folder(**{**DALI, **changes})
    copy = task.prepare(folder, "quick", recipe)
    batches = list(getattr(task.load(copy, recipe, 3, CPU), split).epoch(1, 4))
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    scale = torch.tensor([58.395, 57.12, 57.375]).view(3, 1, 1)
    return images * scale, labels


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_crops_are_those_of_torchvision(dali: None, folder: Path, split: str) -> None:
    images, labels = pixels(folder, split)
    same, same_labels = pixels(folder, split, decoder="torchvision")
    assert torch.equal(labels, same_labels)
    assert images.shape == same.shape == (10, 3, 32, 32)
    assert float((images - same).abs().max()) <= LEVELS
    # The images differ from each other by much more.
    assert float((images - same.roll(1, 0)).abs().amax(dim=(1, 2, 3)).min()) > 10 * LEVELS


def test_equal_epochs_have_equal_pixels(dali: None, folder: Path) -> None:
    assert torch.equal(pixels(folder, "train")[0], pixels(folder, "train")[0])


def test_windows_and_mirrors_are_those_of_torchvision(dali: None, folder: Path) -> None:
    files = FileImages(read_tree(folder), "train", 1 << 20)
    images = np.arange(3)
    boxes = np.array([[0, 0, 64, 97], [10, 3, 50, 40], [63, 96, 1, 1]])
    cuts = Cuts(boxes, np.array([[40, 60], [32, 33], [16, 32]]), np.array([[8, 28], [0, 1], [0, 16]]), np.arange(3) < 2)
    with ThreadPoolExecutor(2) as pool:
        found = DaliCutter(files, 16, CPU)(images, cuts, pool)
        same = TorchvisionCutter(files, 16)(images, cuts, pool)
        again = DaliCutter(files, 16, CPU)
        # A larger batch than the first one, and none.
        assert torch.equal(torch.cat([again(images[:1], cuts.of(images[:1]), pool)]), found[:1])
        assert torch.equal(again(images, cuts, pool), found)
        assert again(images[:0], cuts.of(images[:0]), pool).shape == (0, 16, 16, 3)
    assert float((found.int() - same.int()).abs().max()) <= LEVELS


def test_files_are_cut_at_their_own_size(dali: None, tmp_path: Path) -> None:
    edge = np.zeros((600, 600, 3), dtype=np.uint8)
    edge[:, 300:] = 255
    for place in ("train/a", "train/b", "val/a", "val/b"):
        (tmp_path / place).mkdir(parents=True)
        Image.fromarray(edge).save(tmp_path / place / "0.jpg", quality=95)
    (found, *_), _ = pixels(tmp_path, "test", replace(RECIPE, batch_size=1), image_size=512, eval_resize=600)
    # An image that had been reduced to 256 pixels before would be blurred at the edge.
    assert float((found[0, 256, 257] - found[0, 256, 254]).abs()) > 250


@pytest.mark.parametrize("kept", [0.5, 0.98])
def test_a_damaged_file_is_named(dali: None, folder: Path, tmp_path: Path, kept: float) -> None:
    for place in ("train/a", "train/b", "val/a", "val/b"):
        (tmp_path / place).mkdir(parents=True)
        for number in range(3):
            (tmp_path / place / f"{number}.jpg").write_bytes((folder / "train" / "cat" / "0.jpg").read_bytes())
    content = (folder / "train" / "cat" / "0.jpg").read_bytes()
    (tmp_path / "train" / "b" / "1.jpg").write_bytes(content[: int(kept * len(content))])
    expected = re.escape(f"{tmp_path}/train/b/1.jpg: cannot be read as an image")
    with pytest.raises(UsageError, match=expected):  # before the first trial
        TASK.prepare(tmp_path, "quick", RECIPE)
    files = FileImages(read_tree(tmp_path), "train", 1 << 20)
    images = np.arange(len(files.labels))
    whole = np.concatenate([np.zeros_like(files.sizes), files.sizes], axis=1)
    cuts = Cuts(whole, np.full((len(images), 2), 32), np.zeros((len(images), 2), dtype=np.int64), images < 0)
    with ThreadPoolExecutor(2) as pool, pytest.raises(UsageError, match=expected):  # a file that is damaged later
        DaliCutter(files, 32, CPU)(images, cuts, pool)


def test_a_file_that_only_dali_refuses_is_named(dali: None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = DaliCutter._run

    def refuses(self: DaliCutter, contents: Any, cuts: Any) -> torch.Tensor:
        if any(len(content) == size for content in contents):
            raise RuntimeError("nvImageCodec failure")
        return run(self, contents, cuts)

    size = (folder / "train" / "dog" / "1.jpg").stat().st_size
    monkeypatch.setattr(DaliCutter, "_run", refuses)
    with pytest.raises(UsageError, match=r"dog/1\.jpg: DALI cannot decode this file, but torchvision can"):
        pixels(folder, "train")


def test_dali_needs_files_that_are_read_in_every_epoch(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"the cache has decoded images; add the parameter cache=off to the task"):
        image_folder(decoder="dali").prepare(folder, "quick", RECIPE)
    with pytest.raises(UsageError, match="smoke generates its images"):
        TASK.prepare(folder, "smoke", RECIPE)


def test_without_dali_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia", None)
    with pytest.raises(UsageError, match=r"DALI is not installed; install it with pip install -e '\.\[dali13\]'"):
        check_dali()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_decodes_the_same_crops(dali: None, folder: Path) -> None:
    files = FileImages(read_tree(folder), "train", 1 << 20)
    images = np.arange(len(files.labels))
    whole = np.concatenate([np.zeros_like(files.sizes), files.sizes], axis=1)
    cuts = Cuts(whole, np.full((len(images), 2), 32), np.zeros((len(images), 2), dtype=np.int64), images % 2 == 0)
    with ThreadPoolExecutor(2) as pool:
        found = DaliCutter(files, 32, torch.device("cuda"))(images, cuts, pool)
        same = TorchvisionCutter(files, 32)(images, cuts, pool)
    assert found.is_cuda
    assert float((found.cpu().int() - same.int()).abs().max()) <= 2 * LEVELS  # another decoder, nvJPEG
