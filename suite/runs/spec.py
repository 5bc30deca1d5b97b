"""What to run: a `SuiteSpec` as asked for, the `TrialSpec`s it means, and the hash that names each of them."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suite.errors import UsageError, nearest
from suite.files import canonical_json
from suite.recipe import Recipe
from suite.runs.plugin_files import check_defining_files, digests

PRESETS = ("smoke", "quick", "paper")
LARGEST_SEED = 2**31 - 1
MOST_SEEDS = 10_000

# What determines a trial's result. A field that is not here may differ between two runs of one trial.
_HASHED = ("method", "parameters", "method_version", "task", "preset", "recipe", "seed", "device", "dtype", "processes")


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """One trial, with nothing left to be decided.

    Attributes:
        method, parameters, method_version: the method's name, the values of all its parameters, and `Method.version`.
        variant: the parameters that were typed, `k=v` joined by commas; for readers alone.
        task: its name.
        model: as one types it, without what is default anyway: `resnet9[width=0.25]`.
        model_parameters: the values of all the model's parameters, the defaults too.
        preset: part of the hash, since hooks may read it.
        recipe: `Recipe.fields`, after overrides.
        recipe_source: the paper that the recipe is of, and what was changed in it; empty for the suite's own.
        seed: of weights, order and augmentation.
        device: the kind, `cpu` or `cuda`. device_index: which GPU, not hashed.
        dtype: `float32`, `bfloat16` or `float16`.
        data_copy: the fields of `suite.task.DataCopy`: kind, checksum, path, note. The checksum alone is hashed.
        processes: of the trial, data-parallel.
        plugins: absolute paths of plugin files to load first; not hashed.
        depends_on: the trials that have to be done before, by method as typed: their trial ids.
        files: by parameter that names a file, the SHA-256 of its content; hashed in place of the path.
        defined_by: the files outside the project that define the trial's method, task and model, by these kinds
            (`suite.runs.plugin_files`): path, SHA-256, and the same of modules next to it; the checksums are hashed.
    """

    method: str
    variant: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    method_version: int = 1
    task: str
    model: str
    model_parameters: Mapping[str, Any] = field(default_factory=dict)
    preset: str
    recipe: Mapping[str, Any]
    seed: int
    device: str
    device_index: int | None = None
    dtype: str
    data_copy: Mapping[str, str]
    processes: int = 1
    plugins: tuple[str, ...] = ()
    depends_on: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    recipe_source: str = ""
    defined_by: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """SHA-256, in hex, of the canonical JSON of what determines the result."""
        determines = {name: getattr(self, name) for name in _HASHED}
        determines["model"] = {"name": self.model.partition("[")[0], "parameters": self.model_parameters}
        determines["data"] = self.data_copy["checksum"]
        if self.depends_on:
            determines["depends_on"] = self.depends_on
        if self.files:
            determines["parameters"] = {**self.parameters, **self.files}
        if self.defined_by:
            determines["defined_by"] = digests(self.defined_by)
        return hashlib.sha256(canonical_json(determines).encode()).hexdigest()

    @property
    def trial_id(self) -> str:
        """`<method>-<task>-<model>-s<seed>-<first 8 of the hash>`, the name of the trial's folder."""
        model = re.sub(r"[^A-Za-z0-9._-]+", "-", self.model.replace("=", "")).strip("-")
        # 255 bytes is all that a file system takes; the hash keeps shortened names apart.
        return f"{self.method}-{self.task}-{model[:80]}-s{self.seed}-{self.hash[:8]}"

    @property
    def label(self) -> str:
        """The method as typed: `sdgp[n=2,m=4]`."""
        return f"{self.method}[{self.variant}]" if self.variant else self.method

    def check_files(self) -> None:
        """See that the files which parameters name, and those of plugins, are those that the trial is named for.

        Raises:
            UsageError: for the first that is gone, or has another content.
        """
        check_defining_files(self.defined_by, method=self.method, task=self.task, model=self.model.partition("[")[0])
        for name, digest in self.files.items():
            if checksum(Path(self.parameters[name]), name) != digest:
                raise UsageError(f"{name}: {self.parameters[name]} is another file than when this trial was planned")

    def make_recipe(self) -> Recipe:
        """The recipe as an object."""
        return Recipe(**_without_lists(self.recipe))

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` of it equals this spec. The hash is added for readers."""
        return {**dataclasses.asdict(self), "plugins": list(self.plugins), "hash": self.hash}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrialSpec:
        """Read what `to_json` gave.

        Raises:
            ValueError: if it is no such data, or does not have the hash that it says.
        """
        try:
            fields = {name: value for name, value in data.items() if name != "hash"}
            for name in ("parameters", "model_parameters", "recipe"):
                fields[name] = _without_lists(fields.get(name, {}))
            spec = cls(**{**fields, "plugins": tuple(fields.get("plugins", ()))})
            digest = spec.hash
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a trial's spec: {error}") from error
        if data.get("hash", digest) != digest:
            raise ValueError(f"the spec has the hash {digest[:8]}, not {str(data['hash'])[:8]} as it says")
        return spec


@dataclass(frozen=True, kw_only=True)
class SuiteSpec:
    """A command after its device, format, preset and seeds were decided; methods and models still as typed.

    Attributes:
        methods, tasks, models: comma lists as typed; an empty `models` means each task's own.
        preset: `smoke`, `quick` or `paper`.
        recipe: which paper's, by its name in `Task.paper_recipes`; empty: the preset's.
        seeds: of the trials.
        overrides: fields of the recipe, already of their types.
        device, device_index, dtype: as in `TrialSpec`.
        data_root: where data sets lie, absolute.
        plugins: absolute paths.
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
    recipe: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data, for `suite.json`."""
        return {**dataclasses.asdict(self), "seeds": list(self.seeds), "plugins": list(self.plugins)}


def checksum(path: Path, name: str) -> str:
    """The SHA-256, in hex, of a file that the parameter `name` names.

    Raises:
        UsageError: if it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{name} is '{path}': {error.strerror or error}") from error


def suite_hash(trials: Iterable[TrialSpec]) -> str:
    """A hash over the trials' hashes, whatever their order."""
    return hashlib.sha256("\n".join(sorted(trial.hash for trial in trials)).encode()).hexdigest()


def read_preset(text: str) -> str:
    """Check the name of a preset."""
    if text not in PRESETS:
        raise UsageError(f"--preset '{text}': no preset is called so{nearest(text, PRESETS)}")
    return text


def read_seeds(text: str) -> tuple[int, ...]:
    """`3` is a count: the seeds 0, 1, 2. `0,1,7` is a list; so is `7,`: the seed 7 alone.

    Raises:
        UsageError: if it is neither, the count is 0, or a seed comes twice.
    """
    hint = "type a count (3), a list (0,1,7), or one seed with a comma (7,)"
    if not re.fullmatch(r"\s*[0-9]+\s*(,\s*[0-9]+\s*)*,?\s*", text):
        raise UsageError(f"--seeds '{text}': {hint}")
    parts = [part.strip().lstrip("0") or "0" for part in text.split(",") if part.strip()]
    too_long = any(len(part) > len(str(LARGEST_SEED)) for part in parts)  # Python converts no more than 4,300 digits
    if "," not in text:
        if too_long or not 1 <= int(text) <= MOST_SEEDS:
            raise UsageError(f"--seeds {text}: a count is from 1 to {MOST_SEEDS}; {hint}")
        return tuple(range(int(text)))
    if too_long or max(map(int, parts)) > LARGEST_SEED:
        raise UsageError(f"--seeds '{text}': the largest seed is {LARGEST_SEED}")
    seeds = tuple(map(int, parts))
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"--seeds '{text}': a seed comes twice")
    return seeds


def _without_lists(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no tuples and parameters have no lists, so that each list that comes from JSON was a tuple."""
    return {key: _tuple(value) for key, value in data.items()}


def _tuple(value: Any) -> Any:
    return tuple(_tuple(item) for item in value) if isinstance(value, list) else value
