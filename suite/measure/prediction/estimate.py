"""The step from a probe to the cost of a whole trial: the origin of each number, and its assumptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suite import registry
from suite.files import canonical_json
from suite.trials.spec import TrialSpec

BOUNDED = ("train_s", "communication_s", "flops_executed", "memory_bytes")
"""Numbers that are upper bounds if training may shrink the network, which the probe does not."""
INFERENCE_BATCHES = 6
"""Evaluation batches that a trial runs after its training to measure the inference speed."""
DISTURBED = "disturbed"
"""Beginning of the note of a prediction whose probe other programs disturbed."""


@dataclass(frozen=True)
class Prediction:
    """The expected cost of a trial.

    Attributes:
        epochs: Epochs of the training.
        steps: Training steps of all epochs.
        train_s: Seconds of training, as `train_time_s` of a trial counts them: steps with the input pipeline and the
            hooks, and the changes of the network, without communication between ranks. Measured by the probe for a
            step, times the number of steps. Modelled for images of a size without measured steps: the time of a step
            grows with the dense network's FLOPs.
        eval_s: Seconds of all evaluations. Measured for a batch, times the number of batches.
        other_s: Seconds of everything else in the trial's process: its start, the check of the products, compilation,
            and checkpoints without the disk. Measured.
        flops_dense: FLOPs of training the dense network. Counted, in every epoch for the size of its images.
        flops_executed: FLOPs that the backends execute in training. Counted in the probe's steps, times the steps;
            scaled as the time is for images of another size.
        memory_bytes: Largest memory of a training step. Counted on the CPU, measured on CUDA, in the probe's steps.
            Larger images that the probe did not reach need more.
        payload: Elements of the gradients and number of steps, for each stage. Counted.
        is_bound: Whether the method may shrink the network, which the probe does not. The numbers in `bounds` are then
            upper bounds.
        probed_epochs: Epochs that the probe ran. Steps of later epochs are assumed to cost what the last steps did,
            scaled to the size of their images.
        notes: Assumptions that concern this trial, one line each.
        unbounded: Names of the numbers in `BOUNDED` that may be exceeded even then: times that other programs
            disturbed, numbers modelled for another size of images, and the memory of smaller images.
    """

    epochs: int
    steps: int
    train_s: float
    eval_s: float
    other_s: float
    flops_dense: float
    flops_executed: float
    memory_bytes: int
    payload: tuple[tuple[int, int], ...]
    is_bound: bool
    probed_epochs: int
    notes: tuple[str, ...] = field(default=())
    unbounded: frozenset[str] = frozenset()

    @property
    def bounds(self) -> tuple[str, ...]:
        """Names of the numbers that are upper bounds. The others are expected values."""
        return tuple(name for name in BOUNDED if self.is_bound and name not in self.unbounded)

    @property
    def wall_s(self) -> float:
        """Seconds from the start of the trial's process to its end."""
        return self.train_s + self.eval_s + self.other_s


def predict(trial: TrialSpec, probe: Mapping[str, Any]) -> Prediction:
    """Return the prediction for a trial from the probe of its setting (`suite.measure.prediction.probe.probe`).

    The steps of an epoch cost what those of the last stage before it cost in the probe, scaled to the size of the
    epoch's images (`_size_factors`). A smaller last batch counts as a fraction of a step.

    Args:
        trial: The trial. Its number of epochs may differ from the probe's if the method is steady.
        probe: Result of the probe.
    """
    recipe = trial.make_recipe()
    epochs = recipe.whole_epochs if probe["steady"] else probe["epochs"] + probe["epochs_left"]
    stages = probe["stages"]
    ends = [stage["epoch"] - 1 for stage in stages[1:]] + [epochs]
    train_s, steps, dense, executed, payload, scaled = 0.0, 0, 0.0, 0.0, [], 0
    unbounded: set[str] = set()
    for stage, last in zip(stages, ends, strict=True):
        count = last - stage["epoch"] + 1
        factors = _size_factors(probe["dense_per_image"], stage["epoch"], last)
        other = sum(factor != 1.0 for factor in factors)
        of_last = stage["total_steps"]
        if last == epochs:  # the last epoch may be partial
            of_last = recipe.steps_in(recipe.whole_epochs - 1, of_last)
            factors[-1] *= of_last / stage["total_steps"]
        weight, of_stage = sum(factors), (count - 1) * stage["total_steps"] + of_last
        if other:
            scaled += other
            unbounded.add("train_s")
            if stage["flops"]["executed"] < stage["flops"]["dense"]:  # by a share that may depend on the size of images
                unbounded.add("flops_executed")
        whole = stage["total_steps"] if recipe.drop_last else probe["images"] / stage["batch_size"]
        train_s += weight * whole * stage["step_s"] + count * probe["epoch_start_s"]
        dense += weight * whole * stage["flops"]["dense"]
        executed += weight * whole * stage["flops"]["executed"]
        steps += of_stage
        payload.append((stage["params"], of_stage))
    train_s += probe["reconfigure_s"] * epochs / probe["epochs"]
    pass_s = sum(split["images"] * split["per_image"] for split in probe["evaluation"])
    compile_s = probe["compile_s"] if recipe.execution != "eager" else 0.0  # results of autotuning are stored
    batch_s = recipe.eval_batch_size * probe["evaluation"][0]["per_image"]
    other_s = probe["start_s"] + probe["check_s"] + compile_s + epochs * probe["save_s"] + INFERENCE_BATCHES * batch_s
    if _lacks_largest(probe, epochs):
        unbounded.add("memory_bytes")
    shrinks = bool(registry.get("method", trial.method).shrinks_network)
    return Prediction(
        epochs=epochs,
        steps=steps,
        train_s=train_s,
        eval_s=recipe.evaluations(epochs) * pass_s,
        other_s=other_s,
        flops_dense=dense,
        flops_executed=executed,
        memory_bytes=int(probe["peak_memory_bytes"]),
        payload=tuple(payload),
        is_bound=shrinks,
        probed_epochs=epochs if probe["steady"] else probe["epochs"],
        notes=_notes(trial, probe, epochs, shrinks, scaled),
        unbounded=frozenset(unbounded),
    )


def _per_image(dense: Sequence[float], epoch: int) -> float:
    """Return the dense network's FLOPs for an image of an epoch, from 1; after the last known epoch they stay equal."""
    return dense[min(epoch, len(dense)) - 1]


def _size_factors(dense: Sequence[float], first: int, last: int) -> list[float]:
    """Return the cost of a step of each epoch of a stage, in steps of its first epoch, whose images may be smaller.

    Args:
        dense: FLOPs of training the dense network with an image of each epoch.
        first: First epoch of the stage, counted from 1. Its steps were measured.
        last: Last epoch of the stage.
    """
    return [_per_image(dense, epoch) / _per_image(dense, first) for epoch in range(first, last + 1)]


def _lacks_largest(probe: Mapping[str, Any], epochs: int) -> bool:
    """Return whether the probe ran no whole batch of the largest images. The memory is then that of smaller images."""
    dense = probe["dense_per_image"]
    measured = max(_per_image(dense, stage["epoch"]) for stage in probe["stages"])
    return measured < max(_per_image(dense, epoch) for epoch in range(1, epochs + 1))


def _notes(trial: TrialSpec, probe: Mapping[str, Any], epochs: int, shrinks: bool, scaled: int) -> tuple[str, ...]:
    notes = []
    if shrinks:
        notes.append("the network keeps its size in the probe, so that numbers with 'at most' are upper bounds")
    if not probe["steady"] and probe["epochs"] < epochs:
        notes.append(f"the probe reached epoch {probe['epochs']} of {epochs}; later steps count as its last ones")
    if scaled:
        notes.append(
            f"modelled: in {scaled} of {epochs} epochs a dense step has other FLOPs than the steps that were measured "
            "have; times and FLOPs executed are multiplied by the quotient of the dense network's FLOPs"
        )
    if _lacks_largest(probe, epochs):
        notes.append(
            "the memory is that of the largest images of which the probe ran whole batches; larger ones follow"
        )
    if trial.processes > 1:
        notes.append(
            f"{trial.processes} ranks, of which the probe runs one, alone, on its part of a batch; the start of the "
            "others, their communication and what they take from each other on one machine are not in these times"
        )
    return tuple(notes)


def setting(trial: TrialSpec, *, epochs: bool = True) -> str:
    """Return what the cost of a trial depends on: everything except its seed and the learning rate.

    Args:
        epochs: Whether the number of epochs is part of the result.
    """
    recipe = {
        name: value for name, value in trial.recipe.items() if name != "learning_rate" and (epochs or name != "epochs")
    }
    what = [
        trial.method,
        trial.parameters,
        trial.model,
        trial.model_parameters,
        trial.task,
        trial.task_parameters,
        trial.preset,
        recipe,
    ]
    where = [trial.device, trial.dtype, trial.processes, trial.data_copy["checksum"], sorted(trial.depends_on)]
    return canonical_json([*what, *where])
