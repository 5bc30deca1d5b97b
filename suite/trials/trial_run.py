"""A trial in its process: build, train, resume and write its files."""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import kernels
from suite import files, registry
from suite.engine.cost.clock import Clock, NoCounter, images_per_second, open_counter
from suite.engine.cost.hardware import emulated_dtype
from suite.engine.cost.torch_hardware import use_arithmetic, use_threads_of_environment
from suite.engine.network import model_files
from suite.engine.training.records import Diverged
from suite.engine.training.trainer import Trainer
from suite.errors import UsageError, in_words
from suite.trials.building import build_trainer, data_facts, device_of, load_splits
from suite.trials.callbacks.calls import CallbackTrial, Calls
from suite.trials.folder.records import COMPRESSED, SUFFIX, write_record
from suite.trials.process import ProgressFile, place_of_environment
from suite.trials.provenance import collect, tuning
from suite.trials.ranks import connection
from suite.trials.ranks.processes import FailedStatus, Failure
from suite.trials.spec import TrialSpec
from suite.trials.stages import StageKeeper

log = logging.getLogger("pdt.trial")


class TrialRun:
    """Builds the task, model and method of a spec, trains, and writes the trial's files.

    Args:
        folder: Folder of the trial.
        rank: Number of this process among those of the trial. Only rank 0 writes files; all ranks read checkpoints.
        began: When its process began, by `time.perf_counter` (default: now).

    Attributes:
        result, provenance: As in the trial's record. Both keep their content if the training fails.
    """

    def __init__(self, spec: TrialSpec, folder: Path, rank: int = 0, began: float | None = None) -> None:
        self.spec, self.folder, self.writes = spec, folder, rank == 0
        self.calls = Calls(spec.callbacks, CallbackTrial.of(spec, folder)) if spec.callbacks else None
        self.began = time.perf_counter() if began is None else began
        self.earlier_wall_time = 0.0
        self.earlier_rss = 0
        self.progress = ProgressFile(folder)  # the engine reads from it how far the trial is
        self.result: dict[str, Any] = {}
        self.provenance: dict[str, Any] = {}

    def run(self) -> None:
        """Train to the end."""
        device = self._prepare()
        trainer = self._build()
        self._describe(trainer)
        energy = count_energy(trainer.clock, device)
        self.progress.resumed_after = self._resume(trainer)
        lost = trainer.clock.joules is None and not energy.startswith("not measured")
        self.provenance["energy"] = "not measured (an earlier attempt did not count it)" if lost else energy
        if pruning := self.provenance["pruning"]:
            self.provenance["kernels"] = files.without_home("; ".join(map(kernels.backend_report, pruning)))
        if not self.writes:
            trainer.fit()
            return
        epochs, resumed = trainer.recipe.whole_epochs, self.progress.resumed_after
        self.progress.write(trainer.ctx.epochs_done, epochs, resumed / epochs)
        try:
            trainer.fit()
        finally:
            self.result.update(self._result(trainer))
            if device.type == "cpu":
                self.provenance["onednn_fallbacks"] = self._fallbacks(trainer)
                self.provenance["products"] = trainer.products.by_implementation()
        model_files.save_model(
            self.folder / "model.pt",
            trainer.model,
            name=self.spec.model,
            num_classes=trainer.ctx.num_classes,
            input_shape=trainer.ctx.input_shape,
            reconfigurations=trainer.runner.reconfigurations,
            plugin=Path(self.spec.defined_by.get("model", {}).get("path", "")).name,
        )

    def _prepare(self) -> torch.device:
        """Set up this process as the trial needs it, note where it runs, and return its device."""
        spec, noted = self.spec, self.provenance
        use_arithmetic(spec.arithmetic)  # before torch starts threads
        for plugin in spec.plugins:
            registry.load_plugin(plugin)
        device = device_of(spec)
        use_threads_of_environment()
        noted.update(collect(device))
        if noted["settings"]["arithmetic"] != spec.arithmetic:
            log.warning("subnormal numbers cannot be flushed here, which may slow some products 20 times")
        if emulated_dtype(spec.device, spec.dtype):
            noted["emulated_dtype"] = spec.dtype
        if place := place_of_environment():
            noted["place"] = place
        method = registry.get("method", spec.method)
        noted["method"] = {"source": method.source, "tuning": tuning(method, spec.preset)}
        noted["recipe_tuning"] = tuning(registry.get("task", spec.task_name), spec.preset)
        spec.check_files()
        if spec.processes > 1:
            connection.join_ranks(spec)
        return device

    def _build(self) -> Trainer:
        trainer: Trainer
        recipe = self.spec.make_recipe()
        callbacks: dict[str, Any] = {
            "on_trained": lambda state: self._keep_end(state, trainer.ctx.epochs_done + 1),
            "on_epoch": lambda record: self._append_record(record, trainer.clock),
            "on_checkpoint": lambda state: self._save_checkpoint(state, trainer.ctx.epochs_done),
            "on_step": lambda share: self.progress.write(trainer.ctx.epochs_done, recipe.whole_epochs, share),
        }
        trainer = build_trainer(
            self.spec,
            self.folder.parent,
            load_splits(self.spec),
            from_images=not (self.folder / "checkpoint.pt").is_file(),
            **(callbacks if self.writes else {}),
        )
        return trainer

    def _describe(self, trainer: Trainer) -> None:
        """Note what the record says of the data and the network before the training."""
        noted = self.provenance
        noted["data"] = data_facts(trainer.splits, trainer.ctx.num_classes)
        if trainer.not_counted:
            noted["not_counted"] = list(trainer.not_counted)
        if unplanned := trainer.runner.not_planned:
            noted["not_planned"] = [f"{name}: {reason}" for name, reason in unplanned.items()]
        noted["pruning"] = kernels.backends_in_use()
        noted["initial_weights"] = trainer.initial_weights

    def write(self, status: str, message: str) -> None:
        """Write the trial's record with what is known so far."""
        noted = self.provenance | (self.calls.provenance() if self.calls else {})
        write_record(self.folder, self.spec, status, message, self.result, noted)

    def _fallbacks(self, trainer: Trainer) -> list[str] | str:
        """Return the products of the final network that oneDNN computes with slow reference code, and warn of each."""
        products: list[str] | str = trainer.products.fallbacks()
        for product in products if isinstance(products, list) else []:
            log.warning("oneDNN has no fast implementation of %s: the times do not represent a tuned kernel", product)
        return products or "none"

    def _resume(self, trainer: Trainer) -> int:
        """Continue from the checkpoint if there is one, and drop records that are newer than the checkpoint.

        Returns:
            The number of epochs that the checkpoint holds; 0 without a checkpoint.

        Raises:
            UsageError: The files of the earlier attempt are damaged. The message tells what to do.
        """
        path, records = self.folder / "checkpoint.pt", self.folder / "epochs.jsonl"
        if not path.is_file():
            if self.writes:
                for name in ("epochs.jsonl", *(f"{name}{SUFFIX}" for name in COMPRESSED)):
                    (self.folder / name).unlink(missing_ok=True)  # from an earlier attempt, or from an export
                self.stages = StageKeeper(self.folder)
            return 0
        try:
            state = model_files.load(path, trainer.device)
            earlier, done = state["provenance"], state["trainer"]["hooks"]["epochs_done"]
            before = comparable(earlier)
            lines = records.read_text(encoding="utf-8").splitlines(keepends=True)[:done]
            epochs = [json.loads(line)["epoch"] for line in lines]
            if state["trial"] != self.spec.hash or epochs != list(range(1, done + 1)):
                raise ValueError("checkpoint.pt and epochs.jsonl do not belong together")
        except Exception as error:  # whatever the files hold
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            raise UsageError(f"cannot be resumed ({reason}); delete {path} to start from the beginning") from error
        kept = ("time_utc", "busy_cores", "place")
        attempt = {**{name: earlier[name] for name in kept if name in earlier}, "until_epoch": done}
        kernels.replay_backends(earlier.get("pruning", {}))
        if self.provenance["pruning"]:
            self.provenance["pruning"] = kernels.backends_in_use()
        now = comparable(self.provenance)
        notes = [
            f"{name} was {before.get(name)} until epoch {done}, then {now.get(name)}"
            for name in {**before, **now}
            if before.get(name) != now.get(name)
        ]
        for note in notes:
            log.warning("resumed in another environment: %s; bits may differ, and times are not comparable", note)
        self.provenance["initial_weights"] = earlier.get("initial_weights", "")
        self.provenance["attempts"] = [*earlier.get("attempts", []), attempt]
        if notes := [*earlier.get("resumed_elsewhere", []), *notes]:
            self.provenance["resumed_elsewhere"] = notes
        trainer.load_state_dict(state["trainer"])
        self.earlier_wall_time, self.earlier_rss = state["wall_time_s"], state["peak_rss_bytes"]
        if self.writes:
            files.write(records, "".join(lines))
            self.stages = StageKeeper(self.folder, map(json.loads, lines))
        log.info("resumed after epoch %d", done)
        return int(done)

    def _keep_end(self, state: Callable[[], dict[str, Any]], epoch: int) -> None:
        """Keep the weights and the method's state after the steps of an epoch, for the time pass."""
        if self.spec.processes > 1:  # the time pass does not measure the steps of several processes
            return
        kept = {"trainer": {**state(), "optimizer": None, "average": None}, "trial": self.spec.hash}
        kept["provenance"] = {"pruning": self.provenance["pruning"]}
        self.stages.keep_end(epoch, lambda path: model_files.save(path, kept))

    def _append_record(self, record: dict[str, Any], clock: Clock) -> None:
        files.append(self.folder / "epochs.jsonl", json.dumps(record, allow_nan=False) + "\n")
        self.stages.add(record)
        if self.calls:
            with clock.span("io"):
                self.calls.epoch(record)

    def _save_checkpoint(self, state: Callable[[], dict[str, Any]], epochs_done: int) -> None:
        attempt = {"wall_time_s": self._wall_time, "peak_rss_bytes": self._peak_rss, "provenance": self.provenance}
        model_files.save(self.folder / "checkpoint.pt", {"trainer": state(), "trial": self.spec.hash, **attempt})
        log.info("epoch %d is saved", epochs_done)

    @property
    def _wall_time(self) -> float:
        return self.earlier_wall_time + time.perf_counter() - self.began

    @property
    def _peak_rss(self) -> int:
        """Largest resident memory of all attempts, in bytes."""
        unit = 1 if sys.platform == "darwin" else 1024
        return max(self.earlier_rss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)

    def _result(self, trainer: Trainer) -> dict[str, Any]:
        """Write `layers.csv` and return the measured and counted columns of `results.csv` that have a value."""
        ledger, progress = trainer.ledger, trainer.progress
        last_epoch = trainer.ctx.epochs_done + (trainer.ctx.batch_index > 0)
        files.write(self.folder / "layers.csv", ledger.to_csv(last_epoch))
        flops = {f"train_flops_{column}": value for column, value in ledger.train_flops.items()}
        result: dict[str, Any] = {
            **trainer.clock.columns(),
            "wall_time_s": self._wall_time,
            **flops,
            "inference_flops_dense": ledger.inference_flops_dense,
            "params_dense": trainer.dense_params,
            "peak_memory_bytes": progress.peak_memory_bytes or None,
            "peak_rss_bytes": self._peak_rss,
            "allreduce_bytes": trainer.parallel.ranks.traffic.all_reduced or None,
        }
        if trainer.clock.training:
            result["samples_per_s"] = progress.samples / trainer.clock.training
        if progress.finished:  # accuracy and inference always describe the model in model.pt
            record = progress.last_record
            parameters = list(trainer.model.parameters())
            result |= {
                "test_accuracy": record.get("test_accuracy"),
                "test_accuracy_one_view": record.get("test_accuracy_one_view"),
                "test_loss": record.get("test_loss"),
                "val_accuracy": record.get("val_accuracy"),
                "best_epoch_accuracy": progress.best_accuracy if "test_accuracy" in record else None,
                "inference_flops": ledger.inference_flops(),
                "inference_flops_effective": ledger.inference_flops(effective=True),
                "params": sum(parameter.numel() for parameter in parameters),
                "nonzero_params": sum(int(parameter.count_nonzero()) for parameter in parameters),
                "inference_images_per_s": images_per_second(trainer),
            }
        return {column: value for column, value in result.items() if value is not None}


def count_energy(clock: Clock, device: torch.device) -> str:
    """Count energy in the spans of a clock if a counter can be read; return what is counted, or why nothing is."""
    try:
        counter = open_counter(device)
    except NoCounter as error:
        return f"not measured ({error})"
    clock.count_energy(counter)
    return counter.source


def comparable(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a provenance that affects bits and times, which should be the same when a trial resumes."""
    return {
        "hardware": provenance["hardware_id"],
        "number of threads": provenance["hardware"]["threads"],
        "commit": provenance["git"].get("commit"),
        **{f"pruning on {kind}": backend for kind, backend in provenance.get("pruning", {}).items()},
        **provenance["software"],
    }


def failure_of(error: Exception, rank: int) -> Failure:
    """Return how an exception ended a trial: status, one-line message, and whether another rank is the cause."""
    text = (str(error).splitlines() or [""])[0]
    # torch raises a RuntimeError of its allocator when the CPU's memory is full.
    full = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in text
    status: FailedStatus = "diverged" if isinstance(error, Diverged) else "oom" if full else "error"
    if status == "error":
        if isinstance(error, OSError) and error.filename is not None:
            text = in_words(error)
        elif not isinstance(error, UsageError):
            text = f"{type(error).__name__}: {text}"
    return Failure(rank, status, text, connection.lost_others(error))
