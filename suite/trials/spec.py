"""Specifications: a `SuiteSpec` for a command and its `TrialSpec`s, their hashes, and values as a user types them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Interval
from pydantic import AfterValidator, TypeAdapter

from suite.errors import UsageError, nearest
from suite.files import canonical_json
from suite.parameters import without_lists
from suite.recipe import FLUSH, Recipe
from suite.trials.plugin_files import check_defining_files, check_known, digests

PRESETS = ("smoke", "quick", "paper")
PAPER_SEEDS = 3  # default of the preset `paper`; other presets have 1
DTYPES = ("auto", "float32", "bfloat16", "float16")
LARGEST_SEED = 2**31 - 1
MOST_SEEDS = 10_000

# Fields that determine a trial's result besides the values of parameters. Two runs of a trial may differ in others.
_HASHED = ("method", "method_version", "preset", "seed", "device", "dtype", "processes", "arithmetic")
# Hashed only if they differ from these values, as every field must be that is added here.
_DEFAULTS = {"method_version": 1, "processes": 1, "arithmetic": FLUSH, "depends_on": [], "defined_by": {}}
Values = Annotated[Mapping[str, Any], AfterValidator(without_lists)]
"""Values by name, which JSON may have read: tuples in place of lists."""


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """Everything that defines one trial.

    Attributes:
        method: Name of the method.
        parameters: Values of all parameters of the method.
        method_version: `Method.version`, which rises when a training's bits change by intention.
        variant: Typed parameters of the method, `k=v` joined by commas; not hashed.
        task: Task with the parameters that differ from the defaults of its preset: `imagenette[image_size=160]`.
        task_parameters: Values of all parameters of the task.
        model: Model with the parameters that differ from the defaults: `resnet9[width=0.25]`.
        model_parameters: Values of all parameters of the model.
        preset: Name of the preset; hashed, since methods may read it.
        recipe: `Recipe.fields` after overrides.
        at_default: Flat names (`flat_values`) of the values that equal their declared defaults. They are not hashed, so
            that a new parameter or field with a default changes no id.
        replaced: The command's values of recipe fields that this method alone has otherwise; not hashed.
        recipe_source: Paper of the recipe and changes to it; empty for the suite's own recipes.
        seed: Seed of initial weights, batch order and augmentation.
        device: `cpu` or `cuda`.
        device_index: Index of the GPU; not hashed.
        dtype: `float32`, `bfloat16` or `float16`.
        data_copy: Fields of `suite.task.DataCopy` (`DataCopy.fields`). Only the checksum is hashed.
        processes: Number of data-parallel processes.
        control: Whether the trial is a control of other methods (`Method.is_control`); not hashed.
        prunes: Whether its method prunes (`Method.prunes`); not hashed.
        arithmetic: `flush` if subnormal numbers count as zero, or `ieee` (`suite.engine.cost.torch_hardware`).
        plugins: Absolute paths of plugin files to load first; not hashed.
        callbacks: Names of the callbacks that are called in the trial's process; not hashed.
        depends_on: Ids of the trials that must be done first, by the text with which the method names them.
        files: SHA-256 of each file that a parameter names, by parameter; hashed in place of the path.
        defined_by: Files outside the project that define the method, task and model, by kind
            (`suite.trials.plugin_files`): path, and SHA-256 of the file and of modules next to it. Only the checksums
            are hashed.
    """

    method: str
    variant: str = ""
    parameters: Values = field(default_factory=dict)
    method_version: int = 1
    task: str
    task_parameters: Values = field(default_factory=dict)
    model: str
    model_parameters: Values = field(default_factory=dict)
    preset: str
    recipe: Values
    at_default: tuple[str, ...] = ()
    seed: Annotated[int, Interval(ge=0, le=LARGEST_SEED)]
    device: str
    device_index: Annotated[int, Ge(0)] | None = None
    dtype: str
    data_copy: Mapping[str, Any]
    processes: Annotated[int, Ge(1)] = 1
    control: bool = False
    prunes: bool = True
    arithmetic: str = FLUSH
    plugins: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    depends_on: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    recipe_source: str = ""
    replaced: Values = field(default_factory=dict)
    defined_by: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """SHA-256, in hex, of the canonical JSON of what determines the result and differs from declared defaults."""
        values = {name: value for name, value in self.flat_values().items() if name not in self.at_default}
        values |= {f"method.{name}": digest for name, digest in self.files.items()}
        # A trial that this one depends on may be typed in several ways, and has one id.
        values |= {name: self.depends_on[text] for name, text in self._dependencies().items()}
        determines = {
            **{name: getattr(self, name) for name in _HASHED},
            "depends_on": sorted({*self.depends_on.values()}),
            "task": self.task_name,
            "model": self.model_name,
            "data": self.data_copy["checksum"],
            "defined_by": digests(self.defined_by) if self.defined_by else {},
            "values": values,
        }
        content = {name: value for name, value in determines.items() if _DEFAULTS.get(name) != value}
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()

    def _dependencies(self) -> dict[str, str]:
        """Return the parameters that name a trial on which this one depends, with the text that names it."""
        values = self.flat_values().items()
        return {name: value for name, value in values if isinstance(value, str) and value in self.depends_on}

    def flat_values(self) -> dict[str, Any]:
        """Return the values of all parameters and of the recipe by flat name.

        The parameters of the method have the prefix `method.`. The others have no prefix, so that a field of the recipe
        may become a parameter of a task without a new id.
        """
        method = {f"method.{name}": value for name, value in self.parameters.items()}
        return {**method, **self.recipe, **self.task_parameters, **self.model_parameters}

    @property
    def trial_id(self) -> str:
        """`<method>-<task>-<model>-s<seed>-<first 8 of the hash>`, the name of the trial's folder."""
        task, model = (
            re.sub(r"[^A-Za-z0-9._-]+", "-", text.replace("=", "")).strip("-")[:80] for text in (self.task, self.model)
        )
        # File names have at most 255 bytes. The hash distinguishes shortened names.
        return f"{self.method}-{task}-{model}-s{self.seed}-{self.hash[:8]}"

    @property
    def task_name(self) -> str:
        """Registered name of the task."""
        return self.task.partition("[")[0]

    @property
    def model_name(self) -> str:
        """Registered name of the model."""
        return self.model.partition("[")[0]

    @property
    def label(self) -> str:
        """The method with its typed parameters: `sdgp[n=2,m=4]`."""
        return f"{self.method}[{self.variant}]" if self.variant else self.method

    def check_files(self) -> None:
        """Check that the files named by parameters and the plugins have not changed since the trial was planned.

        Raises:
            UsageError: A file is missing or has changed.
        """
        if self.defined_by:
            check_defining_files(self.defined_by, method=self.method, task=self.task_name, model=self.model_name)
        for name, digest in self.files.items():
            if checksum(Path(self.parameters[name]), name) != digest:
                raise UsageError(f"{name}: {self.parameters[name]} has changed since this trial was planned")

    def of_record(self, plugins: Sequence[str]) -> TrialSpec:
        """Return the specification of a record for another run of it, with the plugins that the user has typed.

        The process that runs it compares their content (`check_files`).

        Raises:
            UsageError: The trial needs a plugin that was not typed.
        """
        check_known(self.defined_by, method=self.method, task=self.task_name, model=self.model_name)
        return dataclasses.replace(self, plugins=tuple(plugins))

    def make_recipe(self) -> Recipe:
        """Return the recipe as an object."""
        return Recipe(**without_lists(self.recipe))

    def to_json(self) -> dict[str, Any]:
        """Return plain data from which `from_json` restores this spec. It also has the hash, for readers."""
        return {**json.loads(json.dumps(dataclasses.asdict(self))), "hash": self.hash}

    @classmethod
    def from_json(cls, data: Any) -> TrialSpec:
        """Restore a spec from the data of `to_json`.

        Raises:
            ValueError: The data is not a spec; pydantic's reasons.
        """
        spec: TrialSpec = _SPEC.validate_python(data)
        return spec


_SPEC = TypeAdapter(TrialSpec)


@dataclass(frozen=True, kw_only=True)
class SuiteSpec:
    """A command with its device, number format, preset and seeds; methods and models are still text.

    Attributes:
        methods, tasks, models: Comma lists as typed. If `models` is empty, each task uses its default model.
        preset: `smoke`, `quick` or `paper`.
        recipe: Name of a paper's recipe in `Task.paper_recipes`; empty for the preset's recipe.
        seeds: Seeds of the trials.
        overrides: Fields of the recipe with values of their types.
        device, device_index, dtype: As in `TrialSpec`.
        data_root: Absolute path of the folder of data sets.
        plugins: Absolute paths of plugin files.
        callbacks: Names of the callbacks of every trial.
        controls: Whether control trials are added (`suite.trials.controls`).
        processes: Number of data-parallel processes of each trial.
        margin: Smallest gain in accuracy that matters for the report's verdict, as a fraction.
        targets: Accuracies, as fractions. The report gives the time, FLOPs and energy to reach each
            (`suite.trials.folder.targets`).
        exploratory: Why the answers of the report are exploratory; empty if nothing says so.
        left_out: What `--skip-unfit` left out: `method` with its parameters, `model`, `task`, and the `reason`.
    """

    methods: str
    tasks: str
    models: str = ""
    preset: str
    seeds: tuple[int, ...]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    device: str
    device_index: int | None = None
    dtype: str
    data_root: str
    plugins: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    recipe: str = ""
    controls: bool = False
    processes: int = 1
    margin: float = 0.005
    targets: tuple[float, ...] = ()
    exploratory: str = ""
    left_out: tuple[Mapping[str, str], ...] = ()


class Prepared(NamedTuple):
    """A command that is ready for its first trial: its spec, all of its trials, its folder, and where it runs."""

    suite: SuiteSpec
    trials: Sequence[TrialSpec]
    folder: Path
    provenance: dict[str, Any]


def checksum(path: Path, name: str) -> str:
    """Return the SHA-256, in hex, of the file that the parameter `name` names.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{name} is '{path}': {error.strerror or error}") from error


def suite_hash(trials: Iterable[TrialSpec]) -> str:
    """Return a hash of the trials' hashes that does not depend on their order."""
    return hashlib.sha256("\n".join(sorted(trial.hash for trial in trials)).encode()).hexdigest()


def read_seeds(text: str) -> tuple[int, ...]:
    """Read a count (`3` means the seeds 0, 1, 2) or a list (`0,1,7`, or `7,` for one seed).

    Raises:
        UsageError: The text is neither, the count is 0, or a seed occurs twice.
    """
    hint = "use a count (3), a list (0,1,7), or one seed with a comma (7,)"
    try:
        seeds = tuple(map(int, text.rstrip(", ").split(",")))
    except ValueError:
        raise UsageError(f"--seeds '{text}': {hint}") from None
    if "," not in text:
        if not 1 <= seeds[0] <= MOST_SEEDS:
            raise UsageError(f"--seeds '{text}': the count must be from 1 to {MOST_SEEDS}; {hint}")
        return tuple(range(seeds[0]))
    if not all(0 <= seed <= LARGEST_SEED for seed in seeds):
        raise UsageError(f"--seeds '{text}': the largest seed is {LARGEST_SEED}")
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"--seeds '{text}': a seed occurs twice")
    return seeds


def read_device(text: str) -> str:
    """Check that `text` is `auto`, `cpu`, `cuda` or `cuda:N`."""
    if re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", text) is None:
        meant = re.sub("(?i)gpu|nvidia", "cuda", text)
        raise UsageError(f"--device '{text}'{nearest(meant, ('auto', 'cpu', 'cuda', 'cuda:0'))}")
    return text
