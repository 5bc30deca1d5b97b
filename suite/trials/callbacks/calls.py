"""Calls of the callbacks that a command names, in the process of a trial. The trial goes on if a callback fails."""

from __future__ import annotations

import copy
import inspect
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite import registry
from suite.errors import UsageError, nearest
from suite.parameters import accepts, split
from suite.trials.spec import TrialSpec

log = logging.getLogger("pdt.callbacks")

HOOKS = ("on_epoch", "on_trial")


@dataclass(frozen=True)
class CallbackTrial:
    """The trial that a callback is called for.

    Attributes:
        trial_id: Its id, the name of its folder.
        folder: Its folder, in which a callback may write files and folders of its own.
        label: The method with its typed parameters.
        task, model, seed: As in its specification.
        recipe: Fields of its recipe.
    """

    trial_id: str
    folder: Path
    label: str
    task: str
    model: str
    seed: int
    recipe: Mapping[str, Any]

    @classmethod
    def of(cls, spec: TrialSpec, folder: Path) -> CallbackTrial:
        """Return the trial of a specification."""
        return cls(spec.trial_id, folder, spec.label, spec.task, spec.model, spec.seed, spec.recipe)


def read_callbacks(text: str) -> tuple[str, ...]:
    """Read a comma list of callbacks, and check that each can be used here. The caller must have loaded the plugins.

    Raises:
        UsageError: A name is unknown or occurs twice. Or a callback has no hook, has a hook with other arguments, or
            finds in its `check` that something is missing.
    """
    names = tuple(split(text))
    known = registry.names("callback")
    for name in names:
        if name not in known:
            raise UsageError(f"--log '{text}': no callback is called '{name}'{nearest(name, known)}")
        if names.count(name) > 1:
            raise UsageError(f"--log '{text}': '{name}' occurs twice")
        callback = registry.get("callback", name)
        if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
            raise UsageError(f"--log '{text}': callback '{name}' has neither on_epoch nor on_trial")
        _check_calls(callback, f"--log '{text}': callback '{name}'")
        if check := getattr(callback, "check", None):
            check()
    return names


def _check_calls(found: type, what: str) -> None:
    """Check before hours of trials that a callback can be made and called.

    Raises:
        UsageError: Its constructor or a hook takes other arguments.
    """
    if not accepts(found, 0):
        raise UsageError(f"{what} is made without arguments, but its __init__ needs some")
    for hook in HOOKS:
        if function := getattr(found, hook, None):
            bound = isinstance(inspect.getattr_static(found, hook), (staticmethod, classmethod))
            if not accepts(function, 2 if bound else 3):
                self = "" if bound else "self, "
                raise UsageError(f"{what}: {hook}{inspect.signature(function)} has to be {hook}({self}trial, record)")


class Calls:
    """The callbacks of one trial in its process.

    A callback that raises an exception is not called again for this trial. The log has the traceback. The record of the
    trial names the callback under `callbacks_failed`.

    Args:
        names: Names of the callbacks.
        make: Returns the callback of a name (default: an object of the registered class).

    Attributes:
        failures: One line for each callback that has failed.
    """

    def __init__(self, names: Sequence[str], trial: CallbackTrial, make: Callable[[str], Any] | None = None) -> None:
        self._names, self._trial = list(names), trial
        self._make = make or (lambda name: registry.get("callback", name)())
        self._made: dict[str, Any] = {}
        self.failures: list[str] = []

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Call `on_epoch` of each callback with the record of an epoch."""
        self._call("on_epoch", record, f"epoch {record.get('epoch')}")

    def end(self, record: Mapping[str, Any]) -> bool:
        """Call `on_trial` of each callback with the record of the trial, and return whether every call succeeded."""
        failed = len(self.failures)
        self._call("on_trial", record, "the end of the trial")
        return len(self.failures) == failed

    def provenance(self) -> dict[str, Any]:
        """Return what the trial's provenance says about callbacks; empty if every call succeeded."""
        return {"callbacks_failed": list(self.failures)} if self.failures else {}

    def _call(self, hook: str, record: Mapping[str, Any], where: str) -> None:
        for name in list(self._names):
            try:
                if name not in self._made:
                    self._made[name] = self._make(name)
                if function := getattr(self._made[name], hook, None):
                    function(self._trial, copy.deepcopy(dict(record)))  # a callback may change only its own copy
            except (Exception, SystemExit) as error:  # a trial goes on whatever its callbacks do
                self._names.remove(name)
                traceback.print_exc()
                place = registry.fault_in_plugin(error)
                text = " ".join(str(error).split())
                said = f"{type(error).__name__}: {text}" + (f" ({place})" if place else "")
                self.failures.append(f"callback {name} failed at {where}: {said}")
                log.error("%s; it is not called again for this trial", self.failures[-1])
