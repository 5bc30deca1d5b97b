"""An engine that trains one trial of each method, whose files the method's other trials borrow."""

from __future__ import annotations

import json
import shutil

from trials_here import run_here

from suite.trials.folder.records import read_record, write_record

LENDERS = {"oneshot": "prunetrain", "ssl": "prunetrain"}  # methods that leave the same files


class Borrowing:
    """Stands for `LocalEngine.run`. Accuracies, times and FLOPs of each borrower are smaller by another factor."""

    def __init__(self) -> None:
        self.trained = {}
        self.borrowers = 0

    def __call__(self, trials, progress):
        for spec, folder in trials:
            method = LENDERS.get(spec.method, spec.method)
            if method not in self.trained:
                run_here(None, [(spec, folder)], progress)
                self.trained[method] = folder
                continue
            self.borrowers += 1
            progress.started(spec)
            self._lend(self.trained[method], spec, folder)
            progress.ended(spec, read_record(folder).to_json(), 0.0)

    def _lend(self, lender, spec, folder):
        shutil.copytree(lender, folder)
        record = read_record(lender)
        epochs = [json.loads(line) for line in (lender / "epochs.jsonl").read_text().splitlines()]
        for numbers in (record.result, *epochs):
            for name, value in numbers.items():
                if isinstance(value, float) and not name.endswith("_dense"):
                    numbers[name] = value * 0.97**self.borrowers
        (folder / "epochs.jsonl").write_text("".join(json.dumps(epoch) + "\n" for epoch in epochs))
        write_record(folder, spec, "done", result=record.result, provenance=record.provenance)
