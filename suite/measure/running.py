"""A pass over the methods of a suite's folder, which measures them and stores their measurements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from suite.engine.cost.hardware import available_cores, busy_advice, busy_cores, competition
from suite.errors import UsageError
from suite.files import clean
from suite.measure.calls import call_in_subprocess
from suite.measure.candidates import Candidate
from suite.measure.times import EntryFile
from suite.trials.folder.records import Strict
from suite.trials.folder.store import Store
from suite.trials.folder.table import minor_version
from suite.trials.plugin_files import load_recorded
from suite.trials.progress import Measurements
from suite.trials.spec import TrialSpec

METHOD_S = 120.0
"""Seconds that the measured steps of one method should take together."""

Entry = TypeVar("Entry", bound=Strict)
Measure = Callable[[Candidate, Mapping[str, Any], int], dict[str, Any]]
"""Measures stages, given the candidate, the arguments of a function and the number of threads."""


@dataclasses.dataclass
class Pass(Generic[Entry]):
    """Measures the methods of a suite's folder, and adds their entries to a file.

    Attributes:
        folder: Folder of a suite.
        methods: Comma list of methods; empty for all.
        threads: Number of threads; `None` for that of the trials.
        busy: Whether to measure while other programs use the machine.
        measure: Function that measures stages with a number of threads; by default `FUNCTION` in a new process.
        show: Function that prints a line.
        plugins: Plugin files that the user has typed.
    """

    file: ClassVar[EntryFile[Any]]
    FUNCTION: ClassVar[str]

    folder: Path
    methods: str = ""
    threads: int | None = None
    busy: bool = False
    measure: Measure | None = None
    show: Callable[[str], None] = print
    plugins: Sequence[str] = ()

    def found(self, number: int) -> list[Candidate]:
        """Return the methods to measure (`find_candidates`)."""
        raise NotImplementedError

    def ordered(self, candidates: list[Candidate], number: int) -> list[Candidate]:
        """Return the methods in the order in which they are measured."""
        return candidates

    def prepare(self, candidates: Sequence[Candidate]) -> bool:
        """Make what is missing for a measurement, and return whether the methods have to be found again."""
        return False

    def ahead(self, candidates: Sequence[Candidate]) -> list[TrialSpec]:
        """Return the trial of each measurement that comes, in this pass and in later ones."""
        raise NotImplementedError

    def entry_of(self, candidate: Candidate, threads: int) -> Entry | None:
        """Measure a method; `None` if it has already been measured.

        Raises:
            UsageError: The trial cannot be run again, or ran on another machine.
        """
        raise NotImplementedError

    def line(self, label: str, entry: Entry) -> str:
        """Return the line to print for a method and its entry."""
        raise NotImplementedError

    def run(self) -> bool:
        """Measure the methods, and return whether every method could be measured. Raises what `run_once` does."""
        return self.run_once()

    def run_once(self, number: int = 0) -> bool:
        """Measure each method once, and return whether every method could be measured.

        Args:
            number: Number of the pass, from 0.

        Raises:
            UsageError: The folder is in use or has no results, a method is unknown, or the machine is busy.
        """
        with Store(self.folder).lock():
            self.file.read(self.folder)  # a damaged file is refused before any measurement
            candidates = self.found(number)
            for path in self.plugins:
                specs = (one.spec or one.lacking for one in candidates)
                load_recorded(path, [spec.defined_by for spec in specs if spec is not None])
            if not self.busy and number == 0:  # later, each pass says itself how busy the machine is
                self._refuse_competition(map(self.threads_for, candidates))
            if number == 0 and self.prepare(candidates):
                candidates = self.found(number)
            if number == 0:
                self._shown = Measurements(self.ahead(candidates))
            several = len({tuple(one.key.items()) for one in candidates}) > 1
            measured = 0
            for place, candidate in enumerate(self.ordered(candidates, number), 1):
                where = f"{candidate.key['task']}, {candidate.key['model']}: " if several else ""
                try:
                    if candidate.spec is None:
                        raise UsageError(candidate.reason)
                    candidate = dataclasses.replace(candidate, spec=candidate.spec.of_record(self.plugins), place=place)
                    entry = self.entry_of(candidate, self.threads_for(candidate))
                except UsageError as error:
                    self.show(clean(f"{where}{candidate.label}: not measured: {' '.join(str(error).split())}"))
                    continue
                if entry is not None:
                    self.file.add(self.folder, candidate.key, candidate.label, entry)
                    self.show(f"{where}{self.line(candidate.label, entry)}")
                measured += 1
        return measured == len(candidates)

    def threads_for(self, candidate: Candidate) -> int:
        """Return the number of threads to measure a candidate with: one for all methods of a group."""
        of_group = int(candidate.key["threads"] or 0) or candidate.threads
        return self.threads or min(of_group, available_cores()) or available_cores()

    def measure_here(self, candidate: Candidate, arguments: dict[str, Any], threads: int, what: str) -> dict[str, Any]:
        """Measure stages of a trial on the machine that the trial ran on, after a line that says what is measured.

        Raises:
            UsageError: The trial cannot be run again, or ran on other hardware or with another version of torch. The
                report combines its results with the measurements.
        """
        assert candidate.spec is not None
        with self._shown.measuring(candidate.spec, f"{what}, {candidate.key['model']} on {candidate.key['task']}"):
            result = (self.measure or self._in_subprocess)(candidate, arguments, threads)
            if "error" in result:
                raise UsageError(result["error"])
        provenance = result["provenance"]
        torch = minor_version((provenance.get("software") or {}).get("torch") or "")
        for name, here in (("hardware_id", provenance.get("hardware_id")), ("torch", torch)):
            known = candidate.key.get(name)
            if here and known and here != known:
                raise UsageError(
                    f"its trials have the {name} {known}, and this machine has {here}; measure where they ran"
                )
        return result

    def _in_subprocess(self, candidate: Candidate, arguments: Mapping[str, Any], threads: int) -> dict[str, Any]:
        """Call `FUNCTION` in a new process with the environment of a trial."""
        spec = candidate.spec
        assert spec is not None
        try:
            called = call_in_subprocess(self.FUNCTION, arguments, spec.device, spec.plugins, threads, spec.arithmetic)
        except RuntimeError as error:
            raise UsageError(str(error)) from error
        return dict(called.value)

    def _refuse_competition(self, threads: Iterable[int]) -> None:
        load, cores = busy_cores(1.0), min(threads)
        if competition(load, cores):
            raise UsageError(
                f"{self.file.verb} {self.folder}: {load:.1f} cores are busy with other programs, which slow one step "
                f"more than another; stop them, or measure all the same with --busy{busy_advice()}"
            )


def disturbance(load: float, threads: int) -> str:
    """Return the end of a line about a measurement that other programs disturbed; empty if they did not."""
    return f"; disturbed: other programs used {load:.1f} cores" if competition(load, threads) else ""
