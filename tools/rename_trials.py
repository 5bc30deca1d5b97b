"""Give the trials of an exported folder of format 1 the ids of format 2.

    python tools/rename_trials.py results/MACHINE/NAME ...

Format 2 has every field of the recipe and every parameter of method, model and task in a trial's specification, and
image files' settings are parameters of their task. Ids, and nothing that was measured, change with it. Files of the
folder that name an old id name the new one; `report` on a copy of the folder then rebuilds the pages.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from suite.choices import MethodChoice, ModelChoice, TaskChoice
from suite.parameters import declared, normal
from suite.recipe import Recipe
from suite.trials.folder import packed
from suite.trials.folder.reader import read
from suite.trials.groups import recipe as recipe_text
from suite.trials.spec import TrialSpec, without_lists

MOVED = ("image_size", "eval_resize", "crop_area", "cache", "decoder", "bad_images")  # from recipe to task
TEXTS = ("*.csv", "*.json", "*.md", "*.txt")


def whole(definition: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return the value of every parameter; those that a specification left out have their defaults."""
    return {name: values.get(name, normal(one.default, one.annotation)) for name, one in declared(definition).items()}


def renamed(old: dict[str, Any], ids: dict[str, str]) -> TrialSpec:
    """Return the specification of a record of format 1 as format 2 has it."""
    recipe = without_lists(old["recipe"])
    moved = {name: recipe.pop(name) for name in MOVED if name in recipe}
    task = TaskChoice(old["task"], {}, TaskChoice.read(old["task"]).definition)
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


def rename(folder: Path) -> None:
    """Rename the trials of a folder."""
    records = {path.parent: json.loads(packed.read(path)) for path in folder.glob("trials/*/trial.json*")}
    left = {place: record for place, record in records.items() if record.get("format", 1) == 1}
    ids: dict[str, str] = {}
    while left:
        ready = [place for place, record in left.items() if {*record["spec"].get("depends_on", {}).values()} <= {*ids}]
        for place in ready:
            record = left.pop(place)
            spec = renamed(record["spec"], ids)
            ids[record["trial_id"]] = spec.trial_id
            record |= {"format": 2, "trial_id": spec.trial_id, "spec": spec.to_json()}
            record.pop("sha256")
            record["sha256"] = packed.digest(record)
            (path,) = place.glob("trial.json*")
            assert path.suffix == ".json"
            path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
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
    print(f"{folder}: {len(ids)} trials renamed")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rename(Path(name))
