"""Tasks of image files: what is found in a folder, what is refused, the cache, and random crops."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import struct
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io
import scipy.stats
import torch
from PIL import Image
from small_copies import image_folder
from torchvision.datasets import imagenet
from torchvision.transforms import v2

import tasks.sources.image_cache as image_cache
from suite.errors import MissingData, UsageError
from suite.recipe import Augmentation
from tasks.imagenet import ImageNet
from tasks.imagenette import Imagenette
from tasks.images.augmentation import UNCHANGED, Normalization
from tasks.images.crops import CropBatches, draw_boxes
from tasks.images.decoding import decode
from tasks.images.stored import MemoryImages
from tasks.sources.extraction import LOCK
from tasks.sources.image_cache import FileImages, store
from tasks.sources.image_tree import read_tree

CPU = torch.device("cpu")
TASK = image_folder()
QUICK = replace(TASK.recipe("quick"), batch_size=4)


def write(folder: Path, splits=("train/", "val/"), classes=("cat", "dog"), count=6, side=40) -> Path:
    """Write images whose shorter side has `side` pixels and whose colour differs, and return the folder."""
    random = np.random.RandomState(0)
    for split in splits:
        for name in classes:
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                shape = (side, side + 8, 3) if number % 2 else (side + 8, side, 3)
                Image.fromarray(random.randint(0, 256, shape).astype(np.uint8)).save(
                    folder / split / name / f"{number}.png"
                )
    return folder


def prepare(folder: Path, **parameters):
    return image_folder(**parameters).prepare(folder, "quick", QUICK)


def test_classes_sizes_and_splits_are_detected(tmp_path):
    copy = prepare(write(tmp_path / "pets", side=70))
    assert (copy.num_classes, copy.image_size) == (2, 64)
    assert TASK.inputs(QUICK, copy) == ((3, 64, 64), 2)
    assert "12 training and 12 test images; test images from val/" in copy.note
    images, labels = next(iter(TASK.load(copy, QUICK, 0, CPU).train.epoch(0, 4)))
    assert images.shape == (4, 3, 64, 64)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert set(labels.tolist()) <= {0, 1}


def test_a_folder_without_splits_always_has_the_same_test_images(tmp_path):
    write(tmp_path, splits=("",), count=20)
    tree = read_tree(tmp_path)
    assert (len(tree.train), len(tree.test)) == (36, 4)
    assert sorted(file.label for file in tree.test) == [0, 0, 1, 1]
    assert read_tree(tmp_path) == tree


def test_the_fingerprint_knows_the_split(tmp_path):
    tree = read_tree(write(tmp_path, splits=("",)))
    first, *others = tree.test
    assert replace(tree, train=(*tree.train, first), test=tuple(others)).fingerprint() != tree.fingerprint()


def test_test_images_come_from_test_if_there_is_val_too(tmp_path):
    write(tmp_path, splits=("train/", "val/", "test/"))
    assert read_tree(tmp_path).split == "test images from test/; val/ not used"


def png(mode="RGB", size=(40, 40)) -> Image.Image:
    return Image.new(mode, size, 7 if mode in ("L", "P", "I;16", "1") else None)


def _huge_png() -> bytes:
    """Return a PNG file whose head promises 2^36 pixels."""
    head = struct.pack(">IIBBBBB", 1 << 18, 1 << 18, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + head
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(head)) + chunk + struct.pack(">I", zlib.crc32(chunk))


BAD_FILES = {
    "empty.jpg": b"",
    "text.jpg": b"this is not an image",
    "zeros.png": bytes(1000),
    "huge.png": _huge_png(),
    "gif.jpg": b"GIF89a\x01\x00\x01\x00\x00\x00\x00;",
    "webp.webp": b"RIFF\x00\x00\x00\x00WEBPVP8 ",
    "eps.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n",
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_not_an_image_is_named(tmp_path, name):
    write(tmp_path)
    (tmp_path / "train" / "cat" / name).write_bytes(BAD_FILES[name])
    with pytest.raises(UsageError, match=name) as caught:
        prepare(tmp_path)
    assert "\n" not in str(caught.value)
    assert ("is empty" in str(caught.value)) == (not BAD_FILES[name])


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp"])
def test_a_truncated_file_is_named(tmp_path, suffix, kept):
    path = write(tmp_path) / "val" / "dog" / f"cut.{suffix}"
    noise = np.random.RandomState(0).randint(0, 256, (40, 40, 3)).astype(np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with pytest.raises(UsageError, match=f"cut.{suffix}"):
        prepare(tmp_path)


def test_bad_files_are_left_out_on_request_and_counted(tmp_path):
    write(tmp_path)
    (tmp_path / "train" / "cat" / "broken.jpg").write_bytes(b"no")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image by its name")
    with pytest.raises(UsageError, match=r"notes\.txt: is not an image by its name"):
        prepare(tmp_path)
    copy = prepare(tmp_path, bad_images="skip")
    assert "12 training and 12 test images" in copy.note
    assert "1 file that cannot be read as an image was left out, the first is train/cat/broken.jpg" in copy.note
    assert "1 file that is not an image of a class was left out, the first is train/cat/notes.txt" in copy.note
    assert TASK.load(copy, QUICK, 0, CPU).train.num_samples == 12


LAYOUTS = {
    "nothing": ([], "no folders"),
    "one_class": (["cat/1.png"], "only the folder cat/; a network needs at least two classes"),
    "empty_class": (
        ["train/cat/1.png", "train/dog/", "val/cat/1.png", "val/dog/1.png"],
        "train/dog: contains no image",
    ),
    "empty_test": (["train/cat/1.png", "train/dog/1.png", "val/dog/1.png", "val/cat/"], "val/cat: contains no image"),
    "missing_class": (["train/cat/1.png", "train/dog/1.png", "val/cat/1.png"], "val/dog: no such folder"),
    "unknown_class": (
        ["train/cat/1.png", "train/dog/1.png", "val/cat/1.png", "val/cats/1.png", "val/dog/1.png"],
        "cats: this class has no folder",
    ),
    "flat": (["train/1.png", "val/1.png"], "no folder of a class"),
    "few": (["cat/1.png", "cat/2.png", "dog/1.png"], "dog: has too few images: 1, and a class needs at least 2"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_wrong_layout_is_described(tmp_path, layout):
    paths, expected = LAYOUTS[layout]
    for path in paths:
        target = tmp_path / "imagefolder" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir() if path.endswith("/") else png().save(target)
    (tmp_path / "imagefolder").mkdir(exist_ok=True)
    with pytest.raises(UsageError) as caught:
        prepare(tmp_path)
    assert expected in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_every_class_of_two_images_has_one_in_each_split(tmp_path):
    for name, count in (("cat", 2), ("dog", 60), ("owl", 3)):
        for number in range(count):
            target = tmp_path / name / f"{number:02d}.png"
            target.parent.mkdir(exist_ok=True)
            png().save(target)
    tree = read_tree(tmp_path)
    for files in (tree.train, tree.test):
        assert {file.label for file in files} == {0, 1, 2}
    assert len(tree.test) == 8  # a tenth of 65, and one of each small class
    assert len({file.path for file in tree.files}) == 65


def test_a_folder_that_does_not_exist_is_missing_data(tmp_path):
    with pytest.raises(MissingData, match="--data-root"):
        prepare(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("mode", "suffix", "conversion"),
    [
        ("P", "png", "palette"),
        ("CMYK", "jpg", "CMYK"),
        ("RGBA", "png", "transparency"),
        ("LA", "png", "transparency"),
        ("1", "png", "black-and-white"),
        ("I;16", "png", "16-bit grey"),
        ("L", "png", ""),
        ("RGB", "webp", ""),
    ],
)
def test_other_colour_modes_are_converted_and_counted(tmp_path, mode, suffix, conversion):
    write(tmp_path)
    png(mode).save(tmp_path / "train" / "cat" / f"other.{suffix}")
    note = prepare(tmp_path).note
    assert (f"converted to RGB: 1 from {conversion}" in note) if conversion else ("converted" not in note)


def test_the_content_of_a_file_decides_on_its_format(tmp_path):
    for name, kind in (("jpeg.png", "JPEG"), ("png.jpg", "PNG")):
        png("L").save(tmp_path / name, kind)
        assert decode(tmp_path / name, 100).pixels.tolist() == [[[7] * 3] * 40] * 40


def test_grey_values_of_16_bits_are_scaled(tmp_path):
    values = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    assert decode(tmp_path / "deep.png", 100).pixels[0, :, 0].tolist() == [0, 1, 128, 255]


def test_colours_of_16_bits_keep_their_higher_8_and_are_named(tmp_path):
    values = struct.pack(">6H", 0, 0x12FF, 0xFFFF, 0x8000, 0x7FFF, 0x0100)

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head, pixels = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0), zlib.compress(b"\0" + values)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    (tmp_path / "deep.png").write_bytes(content)
    found = decode(tmp_path / "deep.png", 100)
    assert found.converted == "16-bit colour"
    assert found.pixels.tolist() == [[[0, 0x12, 0xFF], [0x80, 0x7F, 1]]]


def test_larger_images_are_reduced_as_by_torchvision(tmp_path):
    noise = np.random.RandomState(0).randint(0, 256, (60, 91, 3)).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.png")
    expected = np.asarray(v2.Resize(32)(Image.fromarray(noise)))
    np.testing.assert_array_equal(decode(tmp_path / "large.png", 32).pixels, expected)


def test_an_interrupted_decoding_continues_and_gives_the_same_cache(tmp_path, monkeypatch):
    tree = read_tree(write(tmp_path / "pets", count=20))
    whole = store(tree, tmp_path / "whole", 32, False)
    monkeypatch.setattr(image_cache, "CHUNK", 16)

    def fails_later(path, side):
        if path == tree.root / tree.files[39].path:
            raise KeyboardInterrupt
        return decode(path, side)

    monkeypatch.setattr(image_cache, "decode", fails_later)
    with pytest.raises(KeyboardInterrupt):
        store(tree, tmp_path / "again", 32, False)
    assert not (tmp_path / "again").exists()
    # The process was killed while it wrote the next chunk.
    with open(tmp_path / "again.part" / "pixels.bin", "ab") as file:
        file.write(b"half a chunk")
    with open(tmp_path / "again.part" / "index.bin", "ab") as file:
        file.write(b"half a record")
    calls = []
    monkeypatch.setattr(image_cache, "decode", lambda path, side: (calls.append(path), decode(path, side))[1])
    assert store(tree, tmp_path / "again", 32, False) == whole
    assert len(calls) == 80 - 32
    for name in ("pixels.bin", "index.bin"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == ["cache.json", "index.bin", "pixels.bin"]


def test_a_changed_folder_is_decoded_again(tmp_path):
    before = prepare(write(tmp_path))
    assert prepare(tmp_path) == before
    Image.new("RGB", (50, 50), "red").save(tmp_path / "train" / "cat" / "0.png")
    after = prepare(tmp_path)
    assert after.checksum != before.checksum
    with pytest.raises(MissingData, match="run the command again"):
        TASK.load(before, QUICK, 0, CPU)


@pytest.mark.parametrize("name", ["pixels.bin", "index.bin", "cache.json"])
def test_a_damaged_cache_is_noticed_and_made_again(tmp_path, name):
    copy = prepare(write(tmp_path))
    path = Path(copy.path) / name
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(MissingData, match="run the command again"):
        TASK.load(copy, QUICK, 0, CPU)
    assert prepare(tmp_path) == copy
    TASK.load(copy, QUICK, 0, CPU)


def test_a_disk_that_is_too_small_is_refused_before_anything_is_decoded(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr(image_cache.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(UsageError, match=r"--task NAME\[cache=off\]"):
        prepare(tmp_path)


def test_files_that_are_read_in_every_epoch_give_the_same_pixels(tmp_path):
    write(tmp_path, side=300)  # reduced to 256
    cached = TASK.load(prepare(tmp_path), QUICK, 3, CPU)
    direct = image_folder(cache="off").load(prepare(tmp_path, cache="off"), QUICK, 3, CPU)
    for one, other in ((cached.train, direct.train), (cached.test, direct.test)):
        for (images, labels), (same_images, same_labels) in zip(one.epoch(1, 5), other.epoch(1, 5), strict=True):
            assert torch.equal(images, same_images)
            assert torch.equal(labels, same_labels)


def test_changed_files_are_noticed_without_a_cache(tmp_path):
    copy = prepare(write(tmp_path), cache="off")
    png().save(tmp_path / "train" / "cat" / "new.png")
    with pytest.raises(MissingData, match="the files have changed"):
        image_folder(cache="off").load(copy, QUICK, 0, CPU)


def noise_images(sizes=(12, 20), count=32) -> MemoryImages:
    random = np.random.RandomState(0)
    images = random.randint(0, 256, (count, *sizes, 3)).astype(np.uint8)
    return MemoryImages(images, np.arange(count, dtype=np.int64) % 4)


def batches(training=True, seed=0, area=0.3, sizes=(12, 20), side=8, count=32, **more) -> CropBatches:
    settings = {"eval_resize": 10, "augmentation": Augmentation(), "drop_last": False} | more
    return CropBatches(
        noise_images(sizes, count),
        np.arange(count),
        size=side,
        crop_area=area,
        normalization=Normalization((0.0,) * 3, (1.0,) * 3),
        device=CPU,
        training=training,
        seed=seed,
        **settings,
    )


def test_epochs_depend_on_seed_and_epoch_alone():
    def pixels(seed, epoch):
        return torch.cat([images for images, _ in batches(seed=seed).epoch(epoch, 5)])

    assert torch.equal(pixels(0, 3), pixels(0, 3))
    assert not torch.equal(pixels(0, 3), pixels(0, 4))
    assert not torch.equal(pixels(0, 3), pixels(1, 3))


def test_the_crop_of_an_image_does_not_depend_on_the_batch_size():
    one = torch.cat([images for images, _ in batches().epoch(2, 5)])
    assert torch.equal(one, torch.cat([images for images, _ in batches().epoch(2, 32)]))


def test_a_test_image_is_resized_and_cropped_as_by_torchvision():
    split = batches(training=False)
    found = torch.cat([images for images, _ in split.epoch(0, 7)])
    transform = v2.Compose([v2.Resize(10, antialias=True), v2.CenterCrop(8)])
    for index in range(split.num_samples):
        pixels = torch.from_numpy(noise_images().read(index)).permute(2, 0, 1)
        assert torch.equal(found[index], transform(pixels).float())


def test_a_training_image_is_resized_as_by_torchvision(monkeypatch):
    boxes = torch.tensor([[1, 2, 9, 13], [0, 0, 12, 20], [3, 5, 4, 4], [11, 19, 1, 1]])
    monkeypatch.setattr("tasks.images.crops.draw_boxes", lambda *arguments: boxes)
    split = batches(count=4, augmentation=UNCHANGED)
    for images, labels in split.epoch(0, 4):
        for image, label in zip(images, labels.tolist(), strict=True):
            pixels = torch.from_numpy(noise_images(count=4).read(label)).permute(2, 0, 1)
            expected = v2.functional.resized_crop(pixels, *boxes[label].tolist(), [8, 8], antialias=True)
            assert torch.equal(image, expected.float())


def test_training_images_of_each_size_are_the_same_crops(tmp_path):
    recipe = replace(QUICK, train_sizes=(16, 32), size_milestones=(0.5,))
    splits = image_folder(image_size=32).load(prepare(write(tmp_path)), recipe, 0, CPU)
    found = {size: list(splits.training(size).epoch(1, 4)) for size in (None, *recipe.growing.train_sizes)}
    for (images, labels), (same, same_labels), (smaller, labels_of_smaller) in zip(
        found[None], found[32], found[16], strict=True
    ):
        assert torch.equal(images, same)
        assert torch.equal(labels, same_labels)
        assert torch.equal(labels, labels_of_smaller)
        assert smaller.shape == (4, 3, 16, 16)
        halved = torch.nn.functional.avg_pool2d(images, 2)
        assert torch.nn.functional.cosine_similarity(halved.flatten(1), smaller.flatten(1)).min() > 0.9
    assert next(iter(splits.test.epoch(0, 4)))[0].shape == (4, 3, 32, 32)


def test_half_of_the_images_are_mirrored():
    images = torch.cat([images for images, _ in batches(count=400, area=1.0, sizes=(8, 8)).epoch(0, 400)])
    unmirrored = batches(count=400, area=1.0, sizes=(8, 8), augmentation=UNCHANGED)
    plain = torch.cat([images for images, _ in unmirrored.epoch(0, 400)])
    same = (images == plain).flatten(1).all(1)
    assert torch.equal(images[~same], plain[~same].flip(3))
    assert 150 < same.sum() < 250


def test_an_alternating_flip_mirrors_each_image_in_every_other_epoch():
    whole = {"count": 4, "area": 1.0, "sizes": (8, 8), "seed": 3}
    ((plain, labels),) = batches(**whole, augmentation=UNCHANGED).epoch(0, 4)
    plain = plain[labels.argsort()]
    split = batches(**whole, augmentation=Augmentation(alternating_flip=True))

    def mirrored(epoch):
        ((images, labels),) = split.epoch(epoch, 4)
        return [not torch.equal(image, same) for image, same in zip(images[labels.argsort()], plain, strict=True)]

    first = mirrored(0)
    assert 0 < sum(first) < 4
    assert mirrored(1) == mirrored(3) == [not one for one in first]
    assert mirrored(2) == first


def test_only_training_drops_its_last_batch():
    def sizes(**settings):
        return [len(labels) for _, labels in batches(count=7, **settings).epoch(0, 3)]

    assert sizes(drop_last=True) == [3, 3]
    assert sizes() == sizes(training=False, drop_last=True) == [3, 3, 1]


@pytest.mark.parametrize("size", [(128, 128), (375, 500), (500, 333), (20, 300), (300, 30)])
def test_boxes_are_distributed_as_those_of_torchvision(size):
    count = 4000
    torch.manual_seed(0)
    image = torch.empty(1, *size)
    transform = v2.RandomResizedCrop(8, scale=(0.08, 1.0))
    drawn = [transform.make_params([image]) for _ in range(count)]
    theirs = np.array([[one[name] for name in ("top", "left", "height", "width")] for one in drawn])
    sizes = torch.tensor([size]).repeat(count, 1)
    ours = draw_boxes(sizes, 0.08, torch.Generator().manual_seed(1)).numpy()
    for boxes in (ours, theirs):
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, :2] + boxes[:, 2:] <= size).all()
    quantities = {
        "area": lambda boxes: boxes[:, 2] * boxes[:, 3],
        "ratio": lambda boxes: boxes[:, 3] / boxes[:, 2],
        "top": lambda boxes: boxes[:, 0],
        "left": lambda boxes: boxes[:, 1],
    }
    for name, quantity in quantities.items():
        assert scipy.stats.ks_2samp(quantity(ours), quantity(theirs)).pvalue > 1e-4, name


def test_smoke_takes_a_sample_of_the_users_images(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.image_files.TRAIN_IMAGES", 10)
    task, recipe = image_folder("smoke"), TASK.recipe("smoke")
    copy = task.prepare(write(tmp_path, side=100), "smoke")
    train = task.load(copy, recipe, 0, CPU).train
    assert (copy.num_classes, copy.image_size, train.labels.tolist()) == (2, 64, [0, 0, 0, 1, 1, 1])
    assert train.steps_per_epoch(recipe.batch_size) == 1
    assert train.steps_per_epoch(4) == 2


def test_smoke_needs_no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("PDT_DATA", str(tmp_path / "nowhere"))
    for task in (image_folder("smoke"), Imagenette(**Imagenette.defaults("smoke"))):
        copy = task.prepare(tmp_path / "nowhere", "smoke")
        assert copy.kind == "generated"
        recipe = task.recipe("smoke")
        assert task.inputs(recipe, copy) == ((3, 64, 64), 10)
        images, labels = next(task.load(copy, recipe, 0, CPU).train.epoch(0, recipe.batch_size))
        assert images.shape == (recipe.batch_size, 3, 64, 64)
        assert len(labels.unique()) == 10


@pytest.mark.parametrize(
    ("change", "parameters", "expected"),
    [
        ({"translate": 2}, {}, "recipe.translate applies to tasks of images of one size"),
        ({"cutout": 4}, {}, "recipe.cutout applies"),
        ({"shrink_by": "resize"}, {}, "recipe.shrink_by applies to tasks of images of one size"),
        (
            {},
            {"image_size": 64, "eval_resize": 32},
            "eval_resize is 32, smaller than the image size of 64; eval_resize=none resizes to 8/7 of it",
        ),
        ({"validation_images": 12}, {}, "only 12 training images"),
        (
            {"train_sizes": (24, 40), "size_milestones": (0.5,)},
            {"image_size": 32},
            "recipe.train_sizes has 40, which is larger than the image size of 32; --set",
        ),
    ],
)
def test_what_cannot_be_asked_of_image_files(tmp_path, change, parameters, expected):
    recipe = replace(QUICK, **change)
    with pytest.raises(UsageError, match=expected):
        image_folder(**parameters).load(prepare(write(tmp_path)), recipe, 0, CPU)


def test_imagenette_refuses_other_folders_of_its_name(tmp_path):
    write(tmp_path / "imagenette")
    with pytest.raises(UsageError, match="contains 2 classes; Imagenette has 10"):
        Imagenette().prepare(tmp_path, "quick")


def test_sizes_of_files_are_those_that_are_read(tmp_path):
    images = FileImages(read_tree(write(tmp_path, side=50)), "train", 30)
    for index, size in enumerate(images.sizes.tolist()):
        assert list(images.read(index).shape[:2]) == size


def write_imagenet_archives(root: Path, monkeypatch) -> None:
    """Write archives in the official layout with two classes, and let torchvision accept them."""

    def packed(files: dict[str, bytes], mode: str) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=mode) as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return buffer.getvalue()

    def jpeg(number: int) -> bytes:
        buffer = io.BytesIO()
        Image.new("RGB", (40, 50), (number, 0, 0)).save(buffer, "JPEG")
        return buffer.getvalue()

    wnids = ["n01", "n02"]
    inner = {f"{wnid}.tar": packed({f"{wnid}_{i}.JPEG": jpeg(i) for i in range(3)}, "w") for wnid in wnids}
    kinds = [("ILSVRC2012_ID", int), *((name, object) for name in ("WNID", "words", "gloss")), ("num_children", int)]
    synsets = np.array([(i + 1, wnid, wnid, "", 0) for i, wnid in enumerate(wnids)], dtype=kinds)
    meta = io.BytesIO()
    scipy.io.savemat(meta, {"synsets": synsets.reshape(-1, 1)})
    devkit = {
        "ILSVRC2012_devkit_t12/data/meta.mat": meta.getvalue(),
        "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt": b"2\n1\n",
    }
    contents = {
        "train": packed(inner, "w"),
        "val": packed({f"val_{i}.JPEG": jpeg(i) for i in range(2)}, "w"),
        "devkit": packed(devkit, "w:gz"),
    }
    root.mkdir(parents=True)
    for kind, (name, _) in list(imagenet.ARCHIVE_META.items()):
        (root / name).write_bytes(contents[kind])
        monkeypatch.setitem(imagenet.ARCHIVE_META, kind, (name, hashlib.md5(contents[kind]).hexdigest()))


def test_imagenet_is_read_from_its_archives(tmp_path, monkeypatch):
    write_imagenet_archives(tmp_path / "imagenet", monkeypatch)
    monkeypatch.setattr("tasks.imagenet.CLASSES", 2)
    for split in ("train", "val"):  # left by a process that was killed
        (tmp_path / "imagenet" / f".{split}.part" / "n01").mkdir(parents=True)
    tree = ImageNet().find(tmp_path)
    assert [file.path for file in tree.test] == ["val/n01/val_1.JPEG", "val/n02/val_0.JPEG"]
    assert len(tree.train) == 6
    assert [path.name for path in (tmp_path / "imagenet").iterdir() if path.name.startswith(".")] == [LOCK]


def test_imagenet_says_which_archives_are_missing(tmp_path):
    names = ("ILSVRC2012_img_train.tar", "ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_img_val.tar")
    with pytest.raises(MissingData, match=f"no folder train and val, and lacks {', '.join(map(re.escape, names))}, "):
        ImageNet().find(tmp_path)
    (tmp_path / "imagenet" / "val").mkdir(parents=True)
    with pytest.raises(MissingData, match=r"no folder train, and lacks ILSVRC2012_img_train\.tar, which"):
        ImageNet().find(tmp_path)


def test_the_training_images_of_imagenet_are_extracted_without_the_devkit(tmp_path, monkeypatch):
    root = tmp_path / "imagenet"
    write_imagenet_archives(root, monkeypatch)
    monkeypatch.setattr("tasks.imagenet.CLASSES", 2)
    ImageNet().find(tmp_path)
    shutil.rmtree(root / "train")
    (root / "ILSVRC2012_devkit_t12.tar.gz").unlink()
    assert len(ImageNet().find(tmp_path).train) == 6
