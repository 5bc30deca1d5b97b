"""Write a copy of an exported folder of format 1 in format 2.

    python tools/rename_trials.py OLD NEW [--plugin FILE]

Format 2 has every field of the recipe and every parameter of method, model and task in a trial's specification, and
image files' settings are parameters of their task. Ids, and nothing that was measured, change with it. Files of the
folder that name an old id name the new one; `report NEW` then rebuilds the pages. OLD stays as it is, and NEW appears
when it is complete.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite import registry
from suite.choices import MethodChoice, ModelChoice, TaskChoice
from suite.cli.folders.destination import check_destination, new_folder
from suite.errors import UsageError
from suite.files import canonical_json
from suite.parameters import declared, normal
from suite.recipe import IEEE, Recipe
from suite.trials.folder import packed
from suite.trials.folder.reader import read
from suite.trials.groups import recipe as recipe_text
from suite.trials.plugin_files import digests
from suite.trials.spec import TrialSpec, without_lists

MOVED = ("image_size", "eval_resize", "crop_area", "cache", "decoder", "bad_images")  # from recipe to task
TEXTS = ("*.csv", "*.json", "*.md", "*.txt")
HASHED = ("method", "parameters", "method_version", "task", "preset", "recipe", "seed", "device", "dtype", "processes")


def read_record(place: Path) -> dict[str, Any]:
    """Return the record of a trial after checking that nothing in it was changed.

    Raises:
        UsageError: It is damaged, or of another format.
    """
    try:
        record = json.loads(packed.read(place / "trial.json"))
        spec = record["spec"]
        if record.get("format", 1) != 1:
            raise ValueError(f"its format is {record['format']}, not 1")
        if record["sha256"] != packed.digest(record) or spec["hash"] != old_hash(spec):
            raise ValueError("it was changed: its checksum does not match")
        if record["trial_id"] != place.name:
            raise ValueError(f"it belongs to {record['trial_id']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{place / 'trial.json'} cannot be converted: {error}") from error
    found: dict[str, Any] = record
    return found


def old_hash(spec: dict[str, Any]) -> str:
    """Return the hash of a specification as format 1 had it."""
    determines = {name: spec[name] for name in HASHED}
    determines["model"] = {"name": spec["model"].partition("[")[0], "parameters": spec["model_parameters"]}
    determines["data"] = spec["data_copy"]["checksum"]
    if (arithmetic := spec.get("arithmetic", IEEE)) != IEEE:
        determines["arithmetic"] = arithmetic
    for name in ("depends_on", "files"):
        if spec.get(name):
            key, more = ("parameters", {**spec["parameters"], **spec[name]}) if name == "files" else (name, spec[name])
            determines[key] = more
    if spec.get("defined_by"):
        determines["defined_by"] = digests(spec["defined_by"])
    return hashlib.sha256(canonical_json(determines).encode()).hexdigest()


def whole(definition: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return the value of every parameter; those that a specification left out have their defaults."""
    return {name: values.get(name, normal(one.default, one.annotation)) for name, one in declared(definition).items()}


def renamed(old: dict[str, Any], ids: dict[str, str]) -> TrialSpec:
    """Return the specification of a record of format 1 as format 2 has it."""
    recipe = without_lists(old["recipe"])
    moved = {name: recipe.pop(name) for name in MOVED if name in recipe}
    task = TaskChoice.read(old["task"])
    parameters = {name: moved.get(name, one.default) for name, one in task.declared.items()}
    typed = TaskChoice(task.name, parameters, task.definition).canonical(task.definition.defaults(old["preset"]))
    method, model = MethodChoice.read(old["method"]).definition, ModelChoice.read(old["model"]).definition
    fields = {name: value for name, value in old.items() if name != "hash"}
    return TrialSpec.from_json(
        {
            **fields,
            "task": str(typed),
            "task_parameters": parameters,
            "recipe": Recipe(**recipe).fields(),
            "parameters": whole(method, without_lists(old["parameters"])),
            "model_parameters": whole(model, without_lists(old["model_parameters"])),
            "depends_on": {text: ids[one] for text, one in old.get("depends_on", {}).items()},
        }
    )


def convert(folder: Path, left: dict[str, dict[str, Any]]) -> int:
    """Convert the trials of a copy in place, with their records by name, and return their number."""
    ids: dict[str, str] = {}
    while left:
        ready = [name for name, record in left.items() if {*record["spec"].get("depends_on", {}).values()} <= {*ids}]
        if not ready:
            raise UsageError(f"{folder / 'trials' / min(left)} depends on a trial that the folder does not have")
        for name in ready:
            record, place = left.pop(name), folder / "trials" / name
            spec = renamed(record["spec"], ids)
            ids[record["trial_id"]] = spec.trial_id
            record |= {"format": 2, "trial_id": spec.trial_id, "spec": spec.to_json()}
            record.pop("sha256")
            record["sha256"] = packed.digest(record)
            (place / "trial.json").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            place.rename(place.with_name(spec.trial_id))
    hashes = {old.rpartition("-")[2]: new.rpartition("-")[2] for old, new in ids.items()}
    for path in [one for pattern in TEXTS for one in folder.glob(pattern)]:
        text = path.read_text(encoding="utf-8")
        for old, new in (*ids.items(), *hashes.items()):
            text = re.sub(rf"(?<![\w]){re.escape(old)}(?![\w])", new, text)
        path.write_text(text, encoding="utf-8")
    for path in (folder / "time.json", folder / "profile.json"):
        if path.exists():
            trials = {trial.name: trial for trial in read(folder).trials}
            content = json.loads(path.read_text(encoding="utf-8"))
            for group in content["groups"]:
                entry = next(iter(group["methods"].values()))
                trial = trials[(entry["passes"][0] if "passes" in entry else entry)["trial"]]
                group["key"] |= {"recipe": recipe_text(trial), "task": trial.text("task")}
            path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return len(ids)


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert a folder, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD", help="exported folder of format 1")
    parser.add_argument("new", type=Path, metavar="NEW", help="folder that is written")
    parser.add_argument("--plugin", metavar="FILE", action="append", default=[], help="Python file of its trials")
    typed = parser.parse_args(arguments)
    try:
        for plugin in typed.plugin:
            registry.load_plugin(plugin)
        records = {place.name: read_record(place) for place in sorted(typed.old.glob("trials/*"))}
        if not records:
            raise UsageError(f"rename_trials: {typed.old} has no trials")
        with new_folder("rename_trials", check_destination("rename_trials", typed.new, [typed.old])) as temporary:
            shutil.copytree(typed.old, temporary, dirs_exist_ok=True)
            count = convert(temporary, records)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{typed.new}: {count} trials in format 2")
    return 0


if __name__ == "__main__":
    sys.exit(main())
