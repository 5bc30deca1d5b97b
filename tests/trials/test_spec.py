"""Tests of the name of a trial and of the values that determine it."""

import dataclasses
import json
import re

import pytest
import torch

from suite.engine.cost.hardware import (
    available_cores,
    competition,
    emulated_dtype,
    has_bfloat16_cpu,
    threads_of_environment,
    too_many_threads,
)
from suite.engine.cost.torch_hardware import use_threads_of_environment
from suite.errors import UsageError
from suite.recipe import Recipe
from suite.trials.building import resolve_device, resolve_dtype
from suite.trials.engines.ray_cluster import own_variables
from suite.trials.planning import read_override
from suite.trials.process import environment
from suite.trials.spec import SuiteSpec, TrialSpec, read_device, read_seeds, suite_hash

RECIPE = Recipe(epochs=3, batch_size=4, learning_rate=0.1, milestones=(0.5, 0.75)).fields()
SPEC = TrialSpec(
    method="sdgp",
    variant="n=2",
    parameters={"n": 2, "sizes": (1, 2)},
    task="digits",
    model="resnet9[width=0.25]",
    model_parameters={"width": 0.25},
    preset="smoke",
    recipe=RECIPE,
    seed=7,
    device="cpu",
    dtype="float32",
    data_copy={"kind": "original", "checksum": "ab" * 32, "path": "/data/x", "note": "n"},
)


def test_json_and_back():
    text = json.dumps(SPEC.to_json())
    again = TrialSpec.from_json(json.loads(text))
    assert again == SPEC
    assert again.hash == SPEC.hash
    assert again.make_recipe() == Recipe(**RECIPE)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "dense"},
        {"parameters": {"n": 3}},
        {"method_version": 2},
        {"task": "cifar10"},
        {"task_parameters": {"image_size": 96}},
        {"data_copy": {**SPEC.data_copy, "checksum": "cd" * 32}},
        {"model_parameters": {"width": 0.5}},
        {"model": "resnet32"},
        {"recipe": {**RECIPE, "epochs": 4}},
        {"seed": 8},
        {"device": "cuda"},
        {"dtype": "bfloat16"},
        {"processes": 2},
        {"preset": "quick"},
    ],
)
def test_what_determines_the_result_changes_the_hash(change):
    assert dataclasses.replace(SPEC, **change).hash != SPEC.hash


@pytest.mark.parametrize(
    "change",
    [
        {"variant": ""},
        {"device_index": 3},
        {"plugins": ("/x.py",)},
        {"data_copy": {**SPEC.data_copy, "path": "/elsewhere", "note": "", "kind": "sample"}},
        {"model": "resnet9"},
        {"task": "digits[image_size=96]"},
    ],
)
def test_what_does_not_leaves_it(change):
    assert dataclasses.replace(SPEC, **change).hash == SPEC.hash


@pytest.mark.parametrize("model", ["net[a=(1,2),b=x/y]", "näme[w=1]", "n" * 300, "torchvision/vgg11"])
def test_ids_are_file_names(model):
    identifier = dataclasses.replace(SPEC, model=model).trial_id
    assert re.fullmatch(r"[A-Za-z0-9._-]+", identifier)
    assert len(identifier) < 200


def test_a_member_of_a_collection_shares_no_id_with_a_plain_name():
    plain, member, other = (
        dataclasses.replace(SPEC, model=model, model_parameters={})
        for model in ("vgg11", "torchvision/vgg11", "torchvision-vgg11")
    )
    assert member.trial_id == f"sdgp-digits-torchvision-vgg11-s7-{member.hash[:8]}"
    assert len({plain.hash, member.hash, other.hash}) == 3


def test_a_damaged_spec_is_refused():
    good = SPEC.to_json()
    changes = {"seed": -1, "processes": 0, "device_index": -1, "recipe": 3, "plugins": "x", "control": 2}
    for bad in ({}, *({**good, name: value} for name, value in changes.items())):
        with pytest.raises(ValueError, match="TrialSpec"):
            TrialSpec.from_json(bad)
    assert TrialSpec.from_json({**good, "unknown": 1}) == SPEC


def test_suite_spec_and_its_hash():
    suite = SuiteSpec(
        methods="dense",
        tasks="digits",
        preset="smoke",
        seeds=(0, 1),
        overrides={"milestones": (0.5,)},
        device="cpu",
        dtype="float32",
        data_root="/d",
    )
    plain = json.loads(json.dumps(dataclasses.asdict(suite)))
    assert (plain["methods"], plain["seeds"], plain["overrides"]) == ("dense", [0, 1], {"milestones": [0.5]})
    other = dataclasses.replace(SPEC, seed=8)
    assert suite_hash([SPEC, other]) == suite_hash([other, SPEC]) != suite_hash([SPEC])


@pytest.mark.parametrize(
    ("text", "seeds"), [("1", (0,)), ("3", (0, 1, 2)), ("0,1,7", (0, 1, 7)), ("7,", (7,)), (" 0 , 2 ", (0, 2))]
)
def test_seeds(text, seeds):
    assert read_seeds(text) == seeds


@pytest.mark.parametrize("text", ["x", "", "0", "-1", "1.5", "0,,1", ",", "1,1", "0,-1", "99999", "0,99999999999", "²"])
def test_seeds_that_are_none(text):
    with pytest.raises(UsageError, match="--seeds"):
        read_seeds(text)


def test_overrides_have_the_fields_types():
    assert read_override("recipe.epochs=5") == ("epochs", 5)
    assert read_override("recipe.learning_rate=1") == ("learning_rate", 1.0)
    assert read_override("recipe.clip_norm=none") == ("clip_norm", None)
    assert read_override("recipe.milestones=0.5,0.75") == ("milestones", (0.5, 0.75))
    assert read_override("recipe.flip=false") == ("flip", False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("recipe.epoch=3", "did you mean 'epochs'"),
        ("recipe.epochs", "expected recipe.key=value"),
        ("epochs=3", "expected recipe.key=value"),
        ("recipe.epochs=3, recipe.flip=true", "repeat --set for each field"),
        ("model.width=3", "did you mean 'recipe.width'"),
        ("recipe.epochs=x", "allowed: a number"),
        ("recipe.schedule=cos", "allowed: linear, cosine, step"),
    ],
)
def test_overrides_that_are_none(text, expected):
    with pytest.raises(UsageError, match=expected):
        read_override(text)


def test_presets_devices_and_types(tmp_path):
    for function, text in (
        (read_device, "gpu"),
        (read_device, "cuda:x"),
    ):
        with pytest.raises(UsageError):
            function(text)
    assert resolve_device("cpu") == ("cpu", None)
    assert resolve_dtype("float32", "cpu") == "float32"
    assert resolve_dtype("float16", "cuda") == "float16"
    with pytest.raises(UsageError, match="--dtype float16 needs a CUDA device; on the CPU use bfloat16"):
        resolve_dtype("float16", "cpu")
    assert resolve_dtype("auto", "cpu") in ("float32", "bfloat16")
    assert available_cores() >= 1
    assert not has_bfloat16_cpu(tmp_path / "absent")


X86 = "vendor_id : {vendor}\nflags\t\t: fpu sse4_2 {flags}\n"
ARM = "CPU implementer\t: 0x41\nFeatures\t: fp asimd {flags}\n"
PROCESSORS = {  # cpuinfo, whether bfloat16 is emulated, and whether it is faster than float32
    "Haswell": (X86.format(vendor="GenuineIntel", flags="avx avx2 fma"), True, False),
    "Skylake-X": (X86.format(vendor="GenuineIntel", flags="avx2 avx512f avx512bw avx512vl"), True, False),
    "Cooper Lake": (X86.format(vendor="GenuineIntel", flags="avx2 avx512f avx512_bf16"), False, False),
    "Sapphire Rapids": (X86.format(vendor="GenuineIntel", flags="avx512f avx512_bf16 amx_bf16"), False, True),
    "Zen 3": (X86.format(vendor="AuthenticAMD", flags="avx avx2 fma"), True, False),
    "Zen 4": (X86.format(vendor="AuthenticAMD", flags="avx2 avx512f avx512_bf16"), False, True),
    "Neoverse N1": (ARM.format(flags="asimddp"), True, False),
    "Neoverse V1": (ARM.format(flags="asimddp sve i8mm bf16"), False, True),
    "macOS": ("", False, False),  # what it can is not known
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_processor_without_bfloat16_arithmetic_is_named(tmp_path, name):
    text, emulates, faster = PROCESSORS[name]
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    warning = "--dtype bfloat16: this processor has no bfloat16 arithmetic; --dtype float32 is many times faster"
    assert emulated_dtype("cpu", "bfloat16", path) == (warning if emulates else "")
    assert not emulated_dtype("cpu", "float32", path)
    assert not emulated_dtype("cuda", "bfloat16", path)
    assert has_bfloat16_cpu(path) is faster  # which auto would then choose


def test_a_busy_machine_is_named():
    assert competition(0.9, 2) == ""
    assert "do not rely on measured times" in competition(5.5, 2)


@pytest.mark.parametrize(
    ("typed", "jobs", "warns"), [("2", 1, False), ("3", 1, True), ("2,1", 2, True), ("", 9, False)]
)
def test_more_threads_than_cores_are_named(monkeypatch, typed, jobs, warns):
    monkeypatch.setenv("OMP_NUM_THREADS", typed)
    assert ("many times slower" in too_many_threads(jobs, 2)) is warns


@pytest.mark.parametrize("typed", ["abc", "\u00b2", "\u0663", "-1", "0", "1.5", "9" * 5000])
def test_a_number_of_threads_that_is_none_is_named_and_not_used(monkeypatch, typed):
    monkeypatch.setenv("OMP_NUM_THREADS", typed)
    assert "is not a number of threads and is not used" in too_many_threads(1, 2)
    assert environment(1)["OMP_NUM_THREADS"] == str(available_cores())
    assert "OMP_NUM_THREADS" not in own_variables()
    use_threads_of_environment()  # changes nothing


def test_an_empty_number_of_threads_is_as_good_as_none(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert threads_of_environment() == 0
    assert environment(1)["OMP_NUM_THREADS"] == str(available_cores())
    assert "OMP_NUM_THREADS" not in own_variables()
    monkeypatch.setenv("OMP_NUM_THREADS", " 3,1")
    assert threads_of_environment() == 3


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == ("cpu", None)
    with pytest.raises(UsageError, match="--device cpu"):
        resolve_device("cuda:1")
