"""The objects of a trial: device, data, network with its first weights, and trainer. All of this needs torch."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernels import cache
from suite.choices import build_method, build_model, build_task
from suite.engine.cost.hardware import has_bfloat16_cpu
from suite.engine.network import model_files
from suite.engine.training.trainer import Trainer
from suite.errors import UsageError
from suite.files import default_data_root, read_path
from suite.method import OtherTrial
from suite.task import DataCopy, Inputs, LabelledBatches, SampledBatches, Splits
from suite.trials.folder.records import lacking, read_record
from suite.trials.ranks import in_allocation
from suite.trials.ranks.connection import cuda_device
from suite.trials.spec import TrialSpec, read_device


def resolve_device(text: str) -> tuple[str, int | None]:
    """Return the kind of device, `cpu` or `cuda`, and the index of the GPU.

    Raises:
        UsageError: torch does not find the requested GPU.
    """
    kind, _, index = read_device(text).partition(":")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return "cpu", None
    if not torch.cuda.is_available():
        reason = "sees no CUDA GPU" if torch.version.cuda else "is built without CUDA"
        raise UsageError(f"--device {text}: torch {torch.__version__} {reason}; use --device cpu")
    count = torch.cuda.device_count()
    if int(index or 0) >= count:
        raise UsageError(f"--device {text}: this machine has {count} GPU(s), cuda:0 to cuda:{count - 1}")
    return "cuda", int(index or 0)


def resolve_dtype(text: str, kind: str, index: int | None = None) -> str:
    """Return a number format. `auto` is bfloat16 if the hardware multiplies it faster than float32, otherwise float32.

    Raises:
        UsageError: The user asked for float16 on a CPU.
    """
    if text == "float16" and kind != "cuda":
        raise UsageError("--dtype float16 needs a CUDA device; on the CPU use bfloat16, float32 or auto")
    if text != "auto":
        return text
    if kind == "cuda":
        return "bfloat16" if torch.cuda.get_device_capability(index) >= (8, 0) else "float32"
    return "bfloat16" if has_bfloat16_cpu() else "float32"


def check_processes(processes: int, typed: str, device: str, count: bool) -> None:
    """Check that each process of a trial has a device.

    Args:
        processes: Number of processes of each trial.
        typed: The device as typed.
        device: `cpu` or `cuda`.
        count: Whether this machine must have enough GPUs.

    Raises:
        UsageError: There are fewer GPUs than processes, or the user has named one GPU for several processes.
    """
    if processes == 1 or device == "cpu" or in_allocation():
        return
    if ":" in typed:
        raise UsageError(f"--device {typed} names one GPU; --nproc-per-trial {processes} needs --device cuda")
    if count and (gpus := torch.cuda.device_count()) < processes:
        raise UsageError(f"--nproc-per-trial {processes}: this machine has {gpus} GPU(s), and each process needs one")


def device_of(spec: TrialSpec) -> torch.device:
    """Return the device of a trial; in a trial of several processes, that of this process."""
    if spec.device == "cuda":
        return cuda_device(spec.device_index)
    return torch.device("cpu")


def task_of(spec: TrialSpec) -> Any:
    """Return the task of a trial with its parameters. The caller must have loaded the plugins."""
    return build_task(spec.task_name, spec.task_parameters)


def inputs_of(spec: TrialSpec) -> Inputs:
    """Return the image shape and number of classes of a trial. The caller must have loaded the plugins."""
    task = task_of(spec)
    inputs: Inputs = task.inputs(spec.make_recipe(), DataCopy(**spec.data_copy))
    return inputs


def with_data_here(spec: TrialSpec) -> TrialSpec:
    """Return the specification of a trial, perhaps from another machine, with this machine's copy of the data.

    Raises:
        UsageError: This machine has no such copy.
    """
    recorded = spec.data_copy.get("path")
    if not recorded:
        return spec
    path = read_path(str(recorded), "its data")
    if path.exists():
        return dataclasses.replace(spec, data_copy={**spec.data_copy, "path": str(path)})
    task, root = task_of(spec), read_path(default_data_root(), "PDT_DATA")
    copy = task.prepare(root, spec.preset, spec.make_recipe())
    if copy.checksum != spec.data_copy["checksum"]:
        known, found = DataCopy(**spec.data_copy).label, copy.label
        raise UsageError(
            f"its data is the copy {known}, and {root} has {found}; set PDT_DATA to a folder with its copy"
        )
    return dataclasses.replace(spec, data_copy=copy.fields())


def load_splits(spec: TrialSpec) -> Splits:
    """Return the data of a trial on its device. The caller must have loaded the plugins.

    Raises:
        UsageError: The task does not offer the sizes of training images that the recipe asks for. Or the recipe leaves
            out the test split, and the task has no validation split.
    """
    task, recipe = task_of(spec), spec.make_recipe()
    splits: Splits = task.load(DataCopy(**spec.data_copy), recipe, spec.seed, device_of(spec))
    if recipe.growing.train_sizes and not splits.train_by_size:
        raise UsageError(f"task {spec.task} has images of one size, to which recipe.train_sizes does not apply")
    if recipe.evaluation.evaluate_test:
        return splits
    if splits.validation is None:
        raise UsageError(f"task {spec.task} makes no validation split, which recipe.evaluate_test=false needs")
    return dataclasses.replace(splits, test=None)  # a plugin's task may have loaded the test split


def data_facts(splits: Splits, classes: int) -> dict[str, int]:
    """Return the sizes that tell what an accuracy is worth: of the splits, and of the largest class.

    Args:
        splits: Splits of a trial.
        classes: Number of classes.

    Returns:
        `classes` and `train_images`. With a test split also `test_images`, and `largest_test_class` if the split gives
        its labels: the number of test images of the most frequent class.
    """
    facts = {"classes": classes, "train_images": splits.train.num_samples}
    if splits.test is not None:
        facts["test_images"] = splits.test.num_samples
        if isinstance(splits.test, LabelledBatches) and splits.test.labels.ndim == 1:
            facts["largest_test_class"] = int(splits.test.labels.bincount().max())
    return facts


def build_trainer(
    spec: TrialSpec, trials: Path, splits: Splits, from_images: bool = False, eager: bool = False, **callbacks: Any
) -> Trainer:
    """Return the trainer of a trial before its first step.

    Args:
        trials: Folder of the trials that this one may depend on.
        splits: The data (`load_splits`).
        from_images: Whether a model whose initialisation depends on training images gets them. It needs none if weights
            are loaded later, or if their values do not matter.
        eager: Whether steps run eagerly, whatever the recipe's execution is.
        callbacks: Arguments of `Trainer` whose names begin with `on_`.

    Raises:
        UsageError: A trial that this one depends on is damaged or not done, or the folder for code of `torch.compile`
            cannot be used.
    """
    recipe = spec.make_recipe()
    if eager:
        recipe = recipe.changed(execution="eager")
    if recipe.execution == "compile":
        try:
            cache.keep_code_of_torch_compile()
        except (cache.RefusedError, OSError) as error:
            raise UsageError(f"recipe.execution=compile: {error}") from error
    device, inputs = device_of(spec), inputs_of(spec)
    torch.manual_seed(spec.seed)  # every method of a seed starts with the same weights
    model = build_model(spec.model, *inputs)
    model = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if from_images:
        initialize(model, splits, spec.seed)
    return Trainer(
        model,
        build_method(spec.method, spec.parameters, spec.label),
        recipe,
        splits,
        input_shape=inputs.shape,
        num_classes=inputs.classes,
        seed=spec.seed,
        device=device,
        dtype=getattr(torch, spec.dtype),
        task=spec.task_name,
        network=spec.model_name,
        preset=spec.preset,
        others=_others(spec, trials),
        **callbacks,
    )


def _others(spec: TrialSpec, trials: Path) -> dict[str, OtherTrial]:
    """Return the results of the trials that a trial depends on, by the text with which the method names them.

    Raises:
        UsageError: One of them is damaged or not done.
    """
    results = {}
    for text, trial_id in spec.depends_on.items():
        folder = trials / trial_id
        record = read_record(folder)
        flops = record.result.get("inference_flops") if record else None
        if record is None or flops is None or not record.done:
            raise UsageError(f"this trial depends on {trial_id}, which is not done")
        if reason := lacking(folder, record):
            raise UsageError(f"this trial depends on {trial_id}, which is damaged: {reason}")
        model_file = folder / "model.pt"
        plans = tuple(model_files.read_reconfigurations(model_file))
        results[text] = OtherTrial(plans, flops, model_file, _epochs_of_plans(folder, len(plans)))
    return results


def _epochs_of_plans(folder: Path, count: int) -> tuple[int, ...]:
    """Return the number of finished epochs after which each of the `count` plans of a trial was carried out."""
    lines = (folder / "epochs.jsonl").read_text(encoding="utf-8").splitlines()
    epochs = [record["epoch"] for record in map(json.loads, lines) if record["reconfigured"]]
    return (*[0] * (count - len(epochs)), *epochs)


IMAGES = 5_000


def initialize(model: nn.Module, splits: Splits, seed: int) -> None:
    """Call `initialize_from_images(images)` of a model that has this method, without gradients.

    The images, (N, C, H, W), are normalised training images in the proportions of the classes, on the model's device. N
    is `IMAGES`, or the size of a smaller training split. All ranks draw the same ones.

    Args:
        model: The new model.
        seed: Seed of the trial.

    Raises:
        UsageError: The task does not offer the images.
    """
    set_weights = getattr(model, "initialize_from_images", None)
    if set_weights is None:
        return
    if not isinstance(splits.train, SampledBatches):
        raise UsageError(
            f"{type(model).__name__} is initialised from training images, which the batches of this task do not offer: "
            "they have no method `sample`"
        )
    with torch.no_grad():
        set_weights(splits.train.sample(IMAGES, seed))
