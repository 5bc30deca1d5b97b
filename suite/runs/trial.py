"""One trial in its own process, `python -m suite.runs.trial FOLDER`: from `trial.json` to `model.pt` and a result.

A trial always ends with a status in `trial.json`; if it is killed, the engine writes the status. It resumes from
`checkpoint.pt` if that file exists.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# What imports torch is imported in functions, since `main` must watch the command and take its cores before.
from suite import files, registry
from suite.cost.hardware import emulated_dtype, use_threads_of_environment
from suite.errors import UsageError, in_words
from suite.runs.callbacks.calls import CallbackTrial, Calls
from suite.runs.engines.cpu_cores import place_of_environment, take_place
from suite.runs.engines.exit_with_parent import watch_parent
from suite.runs.folder.records import write_record
from suite.runs.progress import ProgressFile
from suite.runs.provenance import collect, tuning
from suite.runs.ranks import failures, processes
from suite.runs.ranks.failures import FailedStatus
from suite.runs.ranks.trial import run_ranks, settle
from suite.runs.spec import TrialSpec
from suite.runs.stages import StageKeeper
from suite.subnormals import use_arithmetic

log = logging.getLogger("pdt.trial")


def main() -> int:
    """Run the trial whose folder is the first argument. Return 0 if it is done, otherwise 1."""
    watch_parent()  # before torch starts threads
    take_place()  # likewise
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    folder = Path(sys.argv[1])
    spec = TrialSpec.from_json(json.loads((folder / "trial.json").read_text(encoding="utf-8"))["spec"])
    rank = processes.rank_of_environment()
    if spec.processes > 1 and rank is None:
        return run_ranks(spec, folder)
    result: dict[str, Any] = {}
    provenance: dict[str, Any] = {}
    status, message, failure = "done", "", None
    trial = Trial(spec, folder, rank or 0)
    try:
        trial.run(result, provenance)
        if rank is not None:
            processes.leave_ranks()
    except Exception as error:  # every failure becomes a status; log.txt has the traceback
        with contextlib.suppress(OSError):  # the log is on the disk that may be full
            traceback.print_exc()
        failed, message = _failure(error)
        status = failed
        if rank is not None:
            failure = failures.failure_of(rank, failed, message, error)
    if rank:  # rank 0 writes all files of the trial
        if failure:
            failures.report(failure)
        return 1 if failure else 0

    def write(status: str, message: str) -> None:
        write_record(folder, spec, status, message, result=result, provenance=provenance | trial.calls.provenance())

    try:
        if failure is None:
            write(status, message)
        else:  # the process that waits for the ranks finds the cause, and records it with what is written here
            status, message = settle(folder, failure, write)
        ended = {"trial_id": spec.trial_id, "status": status, "message": message, "result": result}
        if not trial.calls.end({**ended, "provenance": provenance}):
            write(status, message)  # it says which callback has failed
    except OSError as error:  # the engine reports the last line of the log
        with contextlib.suppress(OSError):
            print(in_words(error), flush=True)
        return 1
    if status == "done":
        (folder / "checkpoint.pt").unlink(missing_ok=True)
    return 0 if status == "done" else 1


class Trial:
    """Builds the task, model and method of a spec, trains, and writes the trial's files.

    Args:
        spec: Specification of the trial.
        folder: Folder of the trial.
        rank: Number of this process among those of the trial. Rank 0 alone writes files; all ranks read checkpoints.
    """

    def __init__(self, spec: Any, folder: Path, rank: int = 0) -> None:
        self.spec, self.folder, self.writes = spec, folder, rank == 0
        self.calls = Calls(spec.callbacks, CallbackTrial.of(spec, folder))
        self.began = time.perf_counter()
        self.earlier_wall_time = 0.0
        self.earlier_rss = 0
        self.provenance: dict[str, Any] = {}

    def run(self, result: dict[str, Any], provenance: dict[str, Any]) -> None:
        """Train to the end and fill in `result` and `provenance`, which keep their content if the training fails."""
        import kernels
        from suite.network import model_files
        from suite.runs.building import build_trainer, data_facts, device_of, load_splits
        from suite.training.trainer import Trainer

        spec = self.spec
        use_arithmetic(spec.arithmetic)  # before torch starts threads
        for plugin in spec.plugins:
            registry.load_plugin(plugin)
        device, recipe = device_of(spec), spec.make_recipe()
        use_threads_of_environment()
        provenance.update(collect(device))
        if provenance["settings"]["arithmetic"] != spec.arithmetic:
            log.warning("subnormal numbers cannot be flushed here, which may slow some products 20 times")
        if emulated_dtype(spec.device, spec.dtype):
            provenance["emulated_dtype"] = spec.dtype
        if place := place_of_environment():
            provenance["place"] = place
        provenance["method"] = {
            "source": registry.get("method", spec.method).source,
            "tuning": tuning(registry.get("method", spec.method), spec.preset),
        }
        provenance["recipe_tuning"] = tuning(registry.get("task", spec.task), spec.preset)
        spec.check_files()
        if spec.processes > 1:
            processes.join_ranks(spec)
        progress = ProgressFile(self.folder)  # tells the engine where the trial is
        callbacks: dict[str, Any] = {
            "on_trained": lambda state: self._keep_end(state, trainer.ctx.epochs_done + 1),
            "on_epoch": lambda record: self._append_record(record, trainer.clock),
            "on_checkpoint": lambda state: self._save_checkpoint(state, trainer.ctx.epochs_done),
            "on_step": lambda share: progress.write(trainer.ctx.epochs_done, recipe.whole_epochs, share),
        }
        trainer: Trainer = build_trainer(
            spec,
            self.folder.parent,
            load_splits(spec),
            from_images=not (self.folder / "checkpoint.pt").is_file(),
            **(callbacks if self.writes else {}),
        )
        provenance["data"] = data_facts(trainer.splits, trainer.ctx.num_classes)
        if trainer.not_counted:
            provenance["not_counted"] = list(trainer.not_counted)
        if unplanned := trainer.runner.not_planned:
            provenance["not_planned"] = [f"{name}: {reason}" for name, reason in unplanned.items()]
        energy = count_energy(trainer.clock, device)
        provenance["pruning"] = kernels.backends_in_use()
        progress.resumed_after = self._resume(trainer, provenance)
        lost = trainer.clock.joules is None and not energy.startswith("not measured")
        provenance["energy"] = "not measured (an earlier attempt did not count it)" if lost else energy
        if provenance["pruning"]:
            provenance["kernels"] = files.without_home("; ".join(map(kernels.backend_report, provenance["pruning"])))
        self.provenance = provenance
        if not self.writes:
            trainer.fit()
            return
        try:
            trainer.fit()
        finally:
            result.update(self._result(trainer))
            if device.type == "cpu":
                provenance["onednn_fallbacks"] = self._fallbacks(trainer)
        model_files.save_model(
            self.folder / "model.pt",
            trainer.model,
            name=spec.model,
            num_classes=trainer.ctx.num_classes,
            input_shape=trainer.ctx.input_shape,
            reconfigurations=trainer.runner.reconfigurations,
        )

    def _fallbacks(self, trainer: Any) -> list[str] | str:
        """Return the products of the final network that oneDNN computes with slow reference code, and warn of each."""
        found: list[str] | str = trainer.products.fallbacks()
        for product in found if isinstance(found, list) else []:
            log.warning("oneDNN has no fast implementation of %s: the times do not represent a tuned kernel", product)
        return found or "none"

    def _resume(self, trainer: Any, provenance: dict[str, Any]) -> int:
        """Continue from the checkpoint, if there is one, and drop records that were written after it.

        Returns:
            The number of epochs that the checkpoint holds; 0 without one.

        Raises:
            UsageError: The files of the earlier attempt are damaged; the message says what to do.
        """
        import kernels
        from suite.network import model_files

        path, records = self.folder / "checkpoint.pt", self.folder / "epochs.jsonl"
        if not path.is_file():
            if self.writes:
                records.unlink(missing_ok=True)
                self.stages = StageKeeper(self.folder)
            return 0
        hint = f"delete {path} to start from the beginning"
        try:
            state = model_files.load(path, trainer.device)
            if state.get("trial", self.spec.hash) != self.spec.hash:
                raise ValueError("checkpoint.pt belongs to another trial")
            earlier, done = state["provenance"], state["trainer"]["hooks"]["epochs_done"]
            before = comparable(earlier)
            kept = ("time_utc", "busy_cores", "place")
            attempt = {**{name: earlier[name] for name in kept if name in earlier}, "until_epoch": done}
            lines = records.read_text(encoding="utf-8").splitlines(keepends=True)[:done]
            if [json.loads(line)["epoch"] for line in lines] != list(range(1, done + 1)):
                raise ValueError(f"epochs.jsonl does not hold the {done} epochs of the checkpoint")
            digest = hashlib.sha256("".join(lines).encode()).hexdigest()
            if state.get("epochs_sha256", digest) != digest:
                raise ValueError("epochs.jsonl was changed after the checkpoint was written")
        except (UsageError, OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            raise UsageError(f"cannot be resumed ({reason}); {hint}") from error
        kernels.replay_backends(earlier.get("pruning", {}))
        if provenance["pruning"]:
            provenance["pruning"] = kernels.backends_in_use()
        now = comparable(provenance)
        notes = [
            f"{name} was {before.get(name)} until epoch {done}, then {now.get(name)}"
            for name in {**before, **now}
            if before.get(name) != now.get(name)
        ]
        for note in notes:
            log.warning("resumed in another environment: %s; bits may differ, and times are not comparable", note)
        provenance["attempts"] = [*earlier.get("attempts", []), attempt]
        if notes := [*earlier.get("resumed_elsewhere", []), *notes]:
            provenance["resumed_elsewhere"] = notes
        trainer.load_state_dict(state["trainer"])
        self.earlier_wall_time, self.earlier_rss = state["wall_time_s"], state["peak_rss_bytes"]
        if self.writes:
            files.write(records, "".join(lines))
            self.stages = StageKeeper(self.folder, map(json.loads, lines))
        log.info("resumed after epoch %d", done)
        return int(done)

    def _keep_end(self, state: Callable[[], dict[str, Any]], epoch: int) -> None:
        """Keep the weights and the method's state after the steps of an epoch, for the time pass."""
        from suite.network import model_files

        if self.spec.processes > 1:  # whose steps are not measured again
            return
        kept = {"trainer": {**state(), "optimizer": None, "average": None}, "trial": self.spec.hash}
        kept["provenance"] = {"pruning": self.provenance["pruning"]}
        self.stages.keep_end(epoch, lambda path: model_files.save(path, kept))

    def _append_record(self, record: dict[str, Any], clock: Any) -> None:
        files.append(self.folder / "epochs.jsonl", json.dumps(record, allow_nan=False) + "\n")
        self.stages.add(record)
        with clock.span("io"):
            self.calls.epoch(record)

    def _save_checkpoint(self, state: Callable[[], dict[str, Any]], epochs_done: int) -> None:
        from suite.network import model_files

        attempt = {"wall_time_s": self._wall_time, "peak_rss_bytes": self._peak_rss, "provenance": self.provenance}
        lines = (self.folder / "epochs.jsonl").read_bytes().splitlines(keepends=True)[:epochs_done]
        belongs = {"trial": self.spec.hash, "epochs_sha256": hashlib.sha256(b"".join(lines)).hexdigest()}
        model_files.save(self.folder / "checkpoint.pt", {"trainer": state(), **attempt, **belongs})
        log.info("epoch %d is saved", epochs_done)

    @property
    def _wall_time(self) -> float:
        return self.earlier_wall_time + time.perf_counter() - self.began

    @property
    def _peak_rss(self) -> int:
        """Largest resident memory of all attempts, in bytes."""
        unit = 1 if sys.platform == "darwin" else 1024
        return max(self.earlier_rss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)

    def _result(self, trainer: Any) -> dict[str, Any]:
        """Write `layers.csv` and return the measured and counted columns of `results.csv` that have a value."""
        from suite.cost.clock import images_per_second

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


def count_energy(clock: Any, device: Any) -> str:
    """Count energy in the spans of a clock where a counter can be read; return what is counted, or why nothing is."""
    from suite.cost.clock import NoCounter, open_counter

    try:
        counter = open_counter(device)
    except NoCounter as error:
        return f"not measured ({error})"
    clock.count_energy(counter)
    return counter.source


def comparable(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a provenance that affects bits and times and should not change when a trial resumes."""
    return {
        "hardware": provenance["hardware_id"],
        "number of threads": provenance["hardware"]["threads"],
        "commit": provenance["git"].get("commit"),
        **{f"pruning on {kind}": backend for kind, backend in provenance.get("pruning", {}).items()},
        **provenance["software"],
    }


def _failure(error: Exception) -> tuple[FailedStatus, str]:
    """Return the status and the one-line message for an exception that ended a trial."""
    import torch

    from suite.training.records import Diverged

    text = (str(error).splitlines() or [""])[0]
    if isinstance(error, Diverged):
        return "diverged", text
    # torch reports that the CPU's memory is full with a RuntimeError of its allocator.
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in text:
        return "oom", text
    if isinstance(error, OSError) and error.filename is not None:
        return "error", in_words(error)
    return "error", text if isinstance(error, UsageError) else f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    sys.exit(main())
