"""Control trials, which `--controls` adds to a command, so that a difference between a method and dense has a scale.

For each task, model and seed of the command:

- Dense training with fewer epochs (`suite.recipe.control_epochs`) shows what plain training reaches in less time.
- Dense training twice, with the same seed, shows how much two equal trials differ, above all in time.
- Dense training narrowed to the cost of each method whose network becomes smaller (`dense[match=METHOD]`).
- The random twin of each method that has one (`Method.random_twin`) prunes the same amount, chosen at random.
- Each width that is typed, as `dense[width=0.5]`, is trained with fewer epochs too.

A control is an ordinary trial. A command that names it without `--controls` finds the same trial in its folder.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from suite.choices import MethodChoice
from suite.errors import UsageError
from suite.files import canonical_json
from suite.parameters import at_default
from suite.recipe import Recipe
from suite.trials.spec import TrialSpec

log = logging.getLogger(__name__)

# Shared code knows only this method by name. Without parameters, it is the baseline of all comparisons.
BASELINE = "dense"


def dense(**parameters: Any) -> MethodChoice:
    """Return the choice of dense training with these parameters."""
    return dataclasses.replace(MethodChoice.read(BASELINE), typed=parameters)


def dense_spec(spec: TrialSpec) -> TrialSpec:
    """Return the specification of dense training with the same data, model and seed, and the command's recipe."""
    choice = MethodChoice.read(BASELINE)
    recipe, parameters = {**spec.recipe, **spec.replaced}, choice.parameters(spec.task_name, spec.preset)
    of_others = {name for name in spec.at_default if name not in recipe and not name.startswith("method.")}
    of_dense = {f"method.{name}" for name in at_default(choice.definition, parameters)}
    return dataclasses.replace(
        spec,
        recipe=recipe,
        replaced={},
        at_default=tuple(sorted({*of_others, *of_dense, *at_default(Recipe, recipe)})),
        control=False,
        prunes=False,
        method=choice.name,
        variant="",
        parameters=parameters,
        method_version=choice.definition.version,
        depends_on={},
        files={},
        defined_by={kind: files for kind, files in spec.defined_by.items() if kind != "method"},
    )


def control_methods(
    methods: Sequence[MethodChoice], task: str, preset: str, lengths: Sequence[float] = ()
) -> list[MethodChoice]:
    """Return the methods to train as controls of other methods, each once.

    Args:
        methods: Methods of the command.
        task, preset: Names that may decide default values of parameters.
        lengths: Numbers of epochs of the dense budget curve.

    Returns:
        For each method its random twin and its matched dense network, if it has them, and for a width of dense these
        lengths; then dense training again.
    """
    controls: list[MethodChoice] = []
    for choice in _distinct(methods, task, preset):
        if twin := random_twin(choice, task, preset):
            controls.append(twin)
        if choice.definition.shrinks_network:
            controls.append(dense(match=str(choice)))
        if choice.name == BASELINE and {*choice.typed} == {"width"}:
            controls += [choice.with_typed({"recipe.epochs": epochs}) for epochs in lengths]
    return _distinct([*controls, dense(repeat=2)], task, preset)


def random_twin(choice: MethodChoice, task: str, preset: str) -> MethodChoice | None:
    """Return the choice with the values of `Method.random_twin`, and otherwise the same parameters.

    `None` if the method has no random twin, is its own random twin, or does not allow these values together.
    """
    twin = choice.with_typed(choice.definition.random_twin)
    parameters = twin.parameters(task, preset)
    if parameters == choice.parameters(task, preset):
        return None
    try:
        twin.build(parameters)
    except UsageError as error:
        log.info("--controls: %s has no random twin, because %s", choice, error)
        return None
    return twin


def summary(added: Sequence[TrialSpec]) -> str:
    """Describe in one line the trials that `--controls` added to a command."""
    if not added:
        return "--controls adds no trials: the command names all of them"
    epochs: dict[str, list[float]] = defaultdict(list)
    for trial in added:
        epochs[trial.label].append(trial.recipe["epochs"])
    lengths = {label: ", ".join(f"{number:g}" for number in sorted({*numbers})) for label, numbers in epochs.items()}
    parts = ", ".join(f"{len(epochs[label])} of {label} ({text} epochs)" for label, text in lengths.items())
    return f"--controls adds {len(added)} trial(s): {parts}"


def _distinct(methods: Iterable[MethodChoice], task: str, preset: str) -> list[MethodChoice]:
    """Return the methods without those that repeat the values of all parameters of an earlier one."""
    found: dict[str, MethodChoice] = {}
    for choice in methods:
        found.setdefault(canonical_json([choice.name, choice.parameters(task, preset), choice.recipe_fields]), choice)
    return list(found.values())
