"""Schema of the frames that `suite.load_results` returns. `table.py` has that of the results table.

A column of `epochs.jsonl` or `layers.csv` takes unit and kind from the column of `results.csv` with the same name.
"""

from __future__ import annotations

from typing import Literal

from suite.trials.folder.table import COLUMNS, Column, Kind

Frame = Literal["verdicts", "trials", "epochs", "layers", "times"]

FLOPS_KINDS = ("dense", "current", "effective", "executed")
PRODUCTS = ("forward", "dgrad", "wgrad")
# The bytes of a training step are counted. Those of everything that the processes communicate are measured.
COUNTED_COMMUNICATION = ("gradients", "decisions")
MEASURED_COMMUNICATION = ("gradients", "statistics", "decisions", "bookkeeping", "start")
# Objects in epochs.jsonl, with their keys. Their numbers become columns, `NAME_KIND`.
NESTED = {
    "step_flops": FLOPS_KINDS,
    "train_flops": FLOPS_KINDS,
    "step_communication": COUNTED_COMMUNICATION,
    "train_communication": COUNTED_COMMUNICATION,
    "communication": MEASURED_COMMUNICATION,
}


def _column(name: str, type_: type, unit: str, kind: Kind, meaning: str) -> Column:
    return Column(name, type_, unit, kind, name, meaning)


_TRIAL_ID = COLUMNS["trial_id"]
_SO_FAR = "Since the trial began, summed over attempts."
_EVALUATED = "Of the model after the epoch; empty if this split was not evaluated."
EPOCHS: tuple[Column, ...] = (
    _TRIAL_ID,
    _column("epoch", int, "", "trial", "Epochs done, counted from 1."),
    _column("epochs_left", int, "", "trial", "Epochs that remain."),
    _column("train_loss", float, "", "measured", "Loss of the task, averaged over the images of the epoch."),
    _column("regularization", float, "", "measured", "Term of the regularizer, averaged over steps."),
    _column("test_accuracy", float, "fraction", "measured", _EVALUATED),
    _column("test_accuracy_one_view", float, "fraction", "measured",
            "Of each test image as it is, in a last epoch that averages six views."),
    _column("test_loss", float, "", "measured", _EVALUATED),
    _column("val_accuracy", float, "fraction", "measured", _EVALUATED),
    _column("val_loss", float, "", "measured", _EVALUATED),
    _column("learning_rate", float, "", "setting", "Learning rate of the epoch's last step."),
    _column("batch_size", int, "images", "setting", "Batch size of the epoch; a method may change it."),
    _column("steps", int, "", "counted", "Steps of the epoch."),
    _column("frozen", bool, "", "setting", "Whether the parameters of `recipe.freeze` were frozen; otherwise empty."),
    _column("skipped_steps", int, "", "measured", "Steps that were skipped because gradients were not finite."),
    _column("loss_scale", float, "", "measured", "Loss scale after the epoch; with float16 only."),
    *(_column(name, float, "s", "measured", _SO_FAR)
      for name in ("train_time_s", "eval_time_s", "reconfigure_time_s", "compile_time_s")),
    _column("energy_j", float, "J", "measured", _SO_FAR),
    _column("step_memory_bytes", int, "bytes", "measured",
            "Memory of one training step. CUDA: maximum of the allocator. CPU: counted, as for `peak_memory_bytes`."),
    *(_column(f"step_flops_{kind}", float, "FLOPs", "counted", "Of the epoch's last step with a full batch.")
      for kind in FLOPS_KINDS),
    _column("step_overhead", float, "FLOPs", "counted", "Operations of the method itself in that step."),
    *(_column(f"train_flops_{kind}", float, "FLOPs", "counted", "Since the trial began.") for kind in FLOPS_KINDS),
    *(_column(f"step_communication_{kind}", int, "bytes", "counted",
              "What a process of data-parallel training communicates in that step.") for kind in COUNTED_COMMUNICATION),
    *(_column(f"train_communication_{kind}", int, "bytes", "counted", "Since the trial began.")
      for kind in COUNTED_COMMUNICATION),
    *(_column(f"communication_{kind}", int, "bytes", "measured",
              "What the first process communicated since the trial began; empty with one process.")
      for kind in MEASURED_COMMUNICATION),
    _column("params", int, "", "counted", "Weights and biases of the model after the epoch."),
    _column("inference_flops", float, "FLOPs", "counted", "Of the shapes after the epoch, one image."),
    _column("reconfigured", bool, "", "trial", "Whether the epoch ended with a reconfiguration."),
)  # fmt: skip
LAYERS: tuple[Column, ...] = (
    _TRIAL_ID,
    _column("interval", int, "", "trial", "Reconfiguration interval."),
    _column("first_epoch", int, "", "trial", "First epoch of the interval."),
    _column("last_epoch", int, "", "trial", "Last epoch of the interval."),
    _column("steps", int, "", "counted", "Steps of the interval."),
    _column("samples", int, "images", "counted", "Training images of the interval."),
    _column("layer", str, "", "trial", "Name of the layer's module."),
    _column("kind", str, "", "trial", "`conv`, `linear` or `attention`."),
    _column("in_channels", int, "", "counted", "Input channels in the interval."),
    _column("out_channels", int, "", "counted", "Output channels in the interval."),
    _column("kernel", str, "", "counted", "Height and width of the kernel."),
    _column("input", str, "", "counted", "Height and width of the input."),
    _column("output", str, "", "counted", "Height and width of the output."),
    _column("params", int, "", "counted", "Weights and biases of the layer."),
    _column("weight_density", float, "fraction", "counted", "Share of its weights that are not zero."),
    *(_column(f"{product}_{kind}", float, "FLOPs", "counted", "Summed over the interval.")
      for product in PRODUCTS for kind in FLOPS_KINDS),
    _column("overhead", float, "FLOPs", "counted", "Operations of the method itself, summed over the interval."),
)  # fmt: skip
_NAMED = (  # a method, and its group of comparable trials
    *(COLUMNS[name] for name in ("method", "variant", "task", "data_copy", "model", "preset", "dtype", "arithmetic")),
    *(COLUMNS[name] for name in ("hardware_id", "threads", "torch", "epochs", "batch_size", "execution")),
    _column("recipe", str, "", "setting", "Recipe as JSON, as it identifies the group of comparable trials."),
)
VERDICTS: tuple[Column, ...] = (
    *_NAMED[:2],
    _column("outcome", str, "", "measured", "What the report says of it at equal cost; empty if nothing."),
    _column("gain", float, "points", "measured", "Accuracy minus that of dense training for the same cost."),
    _column("gain_low", float, "points", "measured", "Lower end of its interval for all gains of the page together."),
    _column("gain_high", float, "points", "measured", "Upper end of that interval."),
    _column("time_ratio", float, "× dense", "measured", "Training time over that of dense, from time passes."),
    _column("flops_ratio", float, "× dense", "counted", "Executed training FLOPs over those of dense."),
    _column("seeds", int, "", "trial", "Different seeds of its finished trials."),
    _column("equal_cost", str, "", "setting", "Cost that is equal: `time` with undisturbed time passes, or `flops`."),
    _column("reason", str, "", "trial", "Why there is no outcome."),
    *_NAMED[2:],
)
TIMES: tuple[Column, ...] = (
    *_NAMED,
    _column("pass", int, "", "trial", "Number of the pass, from 1."),
    _TRIAL_ID,
    _column("time_ratio", float, "× dense", "measured", "Training time over that of dense, reconfigurations included."),
    _column("reconfiguration", float, "× dense", "measured", "Part of the ratio that is time of reconfigurations."),
    _column("dense_twice", float, "× dense", "measured", "Steps of a second dense trainer over dense steps."),
    _column("pairs", int, "", "setting", "Pairs of steps that were measured, in all stages."),
    _column("stages", int, "", "counted", "Stages of the trial."),
    _column("load", float, "cores", "measured", "Most cores that other programs used during the pass."),
    _column("time_utc", str, "", "machine", "When the measurement began."),
)
