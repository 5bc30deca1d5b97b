"""The verb `tune`: equal budgets, validation images only, trials that are found again, and one choice per method."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from annotated_types import Ge, Interval
from small_trials import recorded, spec
from trials_here import run_here

from reports.data.records import read
from suite.choices import MethodChoice
from suite.cli import main as cli
from suite.cli import preparation
from suite.cli.options import read_run_options
from suite.cli.preparation import resolve
from suite.cli.tune import _with_results
from suite.errors import UsageError
from suite.method import Method
from suite.parameters import Search
from suite.task import Splits
from suite.trials.building import load_splits
from suite.trials.engines.local import LocalEngine
from suite.trials.folder.records import FILES, read_record, write_record
from suite.trials.groups import group_trials
from suite.trials.planning import plan
from suite.trials.search import TOLERANCE, Setting, choose, draw, read_tuned, space
from tasks.digits import RECIPES, Digits

ROOT = Path(__file__).resolve().parents[2]
RECIPE = RECIPES["smoke"]
SMALL = ["--task", "digits", "--preset", "smoke", "--device", "cpu", "--dtype", "float32", "--epochs", "1"]
SMALL += ["--set", "recipe.train_images=64", "--set", "recipe.batch_size=32"]


class Tunable(Method):
    """A method with every kind of search."""

    registered_name: ClassVar = "tunable"

    kept: float = 0.5
    share: Annotated[float, Interval(ge=0, le=1), Search(0.1, 0.9)] = 0.5
    scale: Annotated[Annotated[float, Ge(0)] | None, Search(1e-4, 1e-1, log=True)] = None
    size: Annotated[int, Ge(1), Search(2, 5)] = 3
    factor: Annotated[float, Search(0.5, 2, log=True, relative=True)] = 0.1
    mode: Annotated[Literal["a", "b"], Search()] = "a"
    flag: Annotated[bool, Search()] = False

    def __post_init__(self):
        super().__post_init__()
        if self.mode == "b" and self.flag:
            raise ValueError("mode=b needs flag=false")


def tunable(**typed):
    return MethodChoice("tunable", typed, Tunable)


def dimensions(choice, **keywords):
    return space(choice, spec("dense"), **keywords)


def test_a_setting_is_within_the_space_and_allowed():
    found = draw(tunable(kept=0.25), dimensions(tunable(kept=0.25)), 200, 3)
    assert found[0] == {}
    for values in found[1:]:
        assert 0.025 <= values["recipe.learning_rate"] <= 0.4
        assert 0.1 <= values["share"] <= 0.9
        assert 1e-4 <= values["scale"] <= 1e-1
        assert values["size"] in (2, 3, 4, 5)
        assert 0.05 <= values["factor"] <= 0.2
        assert not (values["mode"] == "b" and values["flag"])
        assert float(f"{values['share']:.3g}") == values["share"]
        assert "kept" not in values
        assert Tunable(**{name: value for name, value in values.items() if "." not in name})
    # Logarithmic: as many below the geometric mean as above it. Few values: each about equally often.
    assert 80 < sum(values["scale"] < 10**-2.5 for values in found[1:]) < 120
    assert {values["mode"] for values in found[1:]} == {"a", "b"}
    counts = [sum(values["size"] == size for values in found[1:]) for size in (3, 4)]
    assert min(counts) > 45


def test_a_larger_budget_adds_settings_and_the_seed_changes_them():
    space_of = dimensions(tunable())
    many = draw(tunable(), space_of, 20, 0)
    assert draw(tunable(), space_of, 7, 0) == many[:7]
    other = draw(tunable(), space_of, 20, 1)
    assert other[0] == {}
    assert all(one not in many for one in other[1:])
    assert len({json.dumps(one) for one in many}) == 20


def test_a_committed_search_is_read_drawn_and_judged_again_with_equal_results():
    tuned = read_tuned(ROOT / "results/cpu-zen4-2cores/airbench-tuning")
    for method in tuned.methods:
        drawn = draw(MethodChoice.read(method.method), method.space, tuned.budget, tuned.search_seed)
        assert drawn == [setting.values for setting in method.settings]
        assert choose(method.settings) == (method.settings, method.chosen)
    rates = [[setting.values.get("recipe.learning_rate") for setting in method.settings] for method in tuned.methods]
    assert rates == [rates[0]] * 4  # all methods try the same learning rates


def test_dense_has_the_learning_rate_alone():
    assert [one.name for one in dimensions(MethodChoice.read("dense"))] == ["recipe.learning_rate"]
    names = [one.name for one in dimensions(MethodChoice.read("prunetrain"))]
    assert names == ["recipe.learning_rate", "ratio", "threshold"]
    assert [one.name for one in dimensions(tunable(), only=["flag", "share"])] == ["share", "flag"]


def test_a_space_that_is_too_small_is_refused():
    with pytest.raises(UsageError, match=r"--budget 3: tunable has only 2 different settings of flag"):
        draw(tunable(), dimensions(tunable(), only=["flag"]), 3, 0)
    assert draw(tunable(), dimensions(tunable(), only=["flag"]), 2, 0) == [{}, {"flag": True}]


@pytest.mark.parametrize("bounds", [(0.5, 0.1), (0.0, 1.0, True), (1.0, None)])
def test_a_search_that_is_no_range_is_refused(bounds):
    with pytest.raises(ValueError, match="is not a range"):
        Search(*bounds)


def test_the_cheaper_or_equal_setting_of_highest_accuracy_is_chosen():
    def setting(accuracy, training=1.0, inference=1.0):
        return Setting(
            values={},
            trial_ids=(),
            val_accuracy=accuracy,
            train_flops_effective=training,
            inference_flops_effective=inference,
        )

    tried = [setting(0.5), setting(0.9, training=1.05), setting(0.6, 0.5), setting(0.8, 1, 1.05), setting(0.6)]
    marked, chosen = choose([*tried, setting(None), setting(0.55, TOLERANCE)])
    assert chosen == 2
    reasons = [one.reason for one in marked]
    assert [bool(reason) for reason in reasons] == [False, True, False, True, False, True, False]
    assert reasons[1] == "its train_flops_effective are 1.05 times those of the default setting"
    assert choose([setting(None), setting(0.4, 9.0), setting(0.3)])[1] == 1  # without the default there is no limit
    assert choose([setting(None), setting(None)])[1] is None


@pytest.mark.parametrize(("second", "expected"), [
    (recorded({"val_accuracy": 0.7}), 0.6),
    (recorded(), None),
    (recorded({"val_accuracy": 0.7}, status="diverged"), None),
    (None, None),
])  # fmt: skip
def test_a_setting_counts_if_all_of_its_seeds_are_done(tmp_path, second, expected):
    trials = [spec("dense", seed=seed) for seed in (0, 1)]
    first = recorded({"val_accuracy": 0.5, "train_flops_effective": 4.0})
    for trial, ended in zip(trials, (first, second), strict=True):
        if ended:
            (tmp_path / "trials" / trial.trial_id).mkdir(parents=True)
            write_record(tmp_path / "trials" / trial.trial_id, trial, ended.status, "", ended.result)
    setting = _with_results(Setting(values={}, trial_ids=[trial.trial_id for trial in trials]), tmp_path)
    assert setting.val_accuracy == (None if expected is None else pytest.approx(expected))
    assert setting.train_flops_effective is None  # only one of the seeds has it


@pytest.fixture(autouse=True)
def without_rehearsal(monkeypatch):
    monkeypatch.setattr(preparation, "rehearse", lambda *given: {})


@pytest.fixture
def invented(folder, monkeypatch):
    """End each trial at once with an accuracy that depends on its learning rate; return the trials.

    PruneTrain is best with a smaller rate than the others.
    """
    trials = []

    def run(self, chosen, progress):
        for trial, place in chosen:
            trials.append(trial)
            place.mkdir(parents=True, exist_ok=True)
            for name in FILES:
                (place / name).touch()
            best = 0.02 if trial.method == "prunetrain" else 0.2
            accuracy = 0.9 - abs(trial.recipe["learning_rate"] - best) - 0.01 * trial.seed
            result = {"val_accuracy": accuracy, "train_flops_effective": 4.0, "inference_flops_effective": 2.0}
            status = "diverged" if trial.recipe["learning_rate"] > 0.3 else "done"
            write_record(place, trial, status, result=result if status == "done" else {})

    monkeypatch.setattr(LocalEngine, "run", run)
    return trials


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_tuning_never_sees_a_test_image(folder, monkeypatch, capsys):
    monkeypatch.setattr(LocalEngine, "run", run_here)
    seen = []
    load = Digits.load

    def spied(self, copy, recipe, seed, device):
        splits = load(self, copy, recipe, seed, device)
        seen.append((recipe, splits))
        return splits

    monkeypatch.setattr(Digits, "load", spied)
    assert cli.main(["tune", "dense", "--budget", "2", *SMALL, "--out", "out"]) == 0
    output = capsys.readouterr().out
    assert "settings, chosen on 6 images" in output
    assert not re.search("test.(accuracy|loss)", output)
    places = [*(folder / "out" / "trials").iterdir()]
    assert len(places) == 2
    for recipe, splits in seen[-2:]:
        assert (recipe.evaluation.evaluate_test, recipe.validation_images, recipe.split_seed) == (False, 6, 0)
        assert splits.test is None
        assert splits.validation.num_samples == 6
    for place in places:
        record = read_record(place)
        assert record.done
        assert "val_accuracy" in record.result
        assert not {"test_accuracy", "test_loss", "best_epoch_accuracy"} & record.result.keys()
    texts = {path: content for path, content in contents(folder / "out").items() if path.suffix in (".json", ".jsonl")}
    assert len(texts) == 8  # of the suite, of tune, and three of each trial
    assert not [path for path, content in texts.items() if b"test_acc" in content or b"test_loss" in content]
    header, *rows = (folder / "out" / "results.csv").read_text().splitlines()
    place = header.split(",").index("test_accuracy")
    for row in rows:
        assert re.sub(r'"(?:[^"]|"")*"', "", row).split(",")[place] == ""
    assert not (folder / "out" / "report.html").exists()
    with pytest.raises(UsageError, match="its trials, as those of tune, were not evaluated on test images"):
        read(folder / "out")
    tuned = read_tuned(folder / "out")
    reached = [one.val_accuracy for one in tuned.methods[0].settings]
    assert tuned.methods[0].chosen == reached.index(max(reached))

    assert cli.main(["export", "out", "exported"]) == 0
    assert "report: none, since its trials were not evaluated on test images" in capsys.readouterr().out
    assert cli.main(["tune", "dense", "--budget", "2", *SMALL, "--out", "exported"]) == 0
    assert not list((folder / "exported").rglob("model.pt"))  # none is trained again
    assert read_tuned(folder / "exported").methods == tuned.methods


def test_a_task_that_loads_the_test_split_all_the_same_does_not_give_it_to_a_trial(monkeypatch):
    load = Digits.load

    def always(self, copy, recipe, seed, device):
        return load(self, copy, dataclasses.replace(recipe, evaluate_test=True), seed, device)

    monkeypatch.setattr(Digits, "load", always)
    trial = spec("dense", validation_images=20, evaluate_test=False)
    assert load_splits(trial).test is None
    assert load_splits(spec("dense", validation_images=20)).test is not None

    monkeypatch.setattr(Digits, "load", lambda *arguments: Splits(None, None))
    with pytest.raises(UsageError, match="task digits makes no validation split"):
        load_splits(trial)


def test_every_method_has_the_same_budget_and_the_same_command_continues(folder, invented, capsys):
    command = ["tune", "sdgp[n=1]", "--budget", "3", "--seeds", "2", *SMALL, "--out", "out"]
    assert cli.main(command) == 0
    tuned = read_tuned(folder / "out")
    assert [one.method for one in tuned.methods] == ["dense", "sdgp[n=1]"]
    assert {len(one.settings) for one in tuned.methods} == {3}
    assert {len(setting.trial_ids) for one in tuned.methods for setting in one.settings} == {2}
    assert len(invented) == len({trial.hash for trial in invented}) == 12
    for trial in invented:
        assert trial.recipe["validation_images"] == 6
        assert not trial.recipe["evaluate_test"]
        if trial.method == "sdgp":
            assert trial.parameters["n"] == 1
    # All methods chose the same learning rate, which is that of the recipe in the final comparison.
    assert not any("learning_rate" in one.label for one in tuned.methods)
    # The choice is that of the mean over both seeds, and diverged trials are not chosen.
    for one in tuned.methods:
        chosen = one.settings[one.chosen]
        assert chosen.val_accuracy == max(item.val_accuracy or 0 for item in one.settings)
    assert cli.main(command) == 0
    assert read_tuned(folder / "out") == tuned
    done = [trial for trial in invented if trial.recipe["learning_rate"] <= 0.3]
    assert len(invented) == 12 + (12 - len(done))  # those that diverged are tried again
    assert "final comparison" in capsys.readouterr().out


def test_the_final_comparison_is_one_group_with_the_chosen_values(folder, invented, monkeypatch):
    assert cli.main(["tune", "prunetrain", "--budget", "4", *SMALL, "--out", "out"]) == 0
    tuned = read_tuned(folder / "out")
    words = re.findall(r"'([^']*)'|(\S+)", tuned.command)
    words = [quoted or plain for quoted, plain in words]
    arguments = words[words.index("--methods") :]
    suite = resolve(read_run_options(arguments))
    trials = plan(suite)
    assert {trial.seed for trial in trials} == {1, 2, 3}  # no setting was chosen with these
    assert {trial.recipe["validation_images"] for trial in trials} == {0}
    assert all(trial.recipe["evaluate_test"] for trial in trials)
    for one in tuned.methods:
        (found,) = {trial.label: trial for trial in trials if trial.method == one.method}.values()
        assert found.label == one.label
        values = one.settings[one.chosen].values
        assert found.recipe["learning_rate"] == values.get("recipe.learning_rate", RECIPE.learning_rate)
        for name, value in values.items():
            if "." not in name:
                assert found.parameters[name] == value
    assert ["learning_rate" in method.label for method in tuned.methods] == [False, True]
    shared = {json.dumps({**trial.recipe, **trial.replaced}, sort_keys=True) for trial in trials}
    assert len(shared) == 1


def test_a_setting_has_its_trial_even_if_one_of_another_method_depends_on_that(folder, invented):
    methods = "prunetrain[selection=random],prunetrain"
    words = ["tune", methods, "--budget", "2", "--search", "recipe.learning_rate", *SMALL, "--out", "out"]
    assert cli.main(words) == 0
    ids = [setting.trial_ids for method in read_tuned(folder / "out").methods for setting in method.settings]
    assert {len(trial_ids) for trial_ids in ids} == {1}
    assert len(set(ids)) == len(invented) == 6


def test_a_learning_rate_of_one_method_is_its_own_and_its_dependencies_have_it():
    options = ["--methods", "dense,prunetrain[selection=random,recipe.learning_rate=0.3]", *SMALL, "--controls"]
    trials = {trial.label: trial for trial in plan(resolve(read_run_options(options)))}
    typed = trials["prunetrain[selection=random,recipe.learning_rate=0.3]"]
    assert (typed.recipe["learning_rate"], typed.replaced) == (0.3, {"learning_rate": 0.1})
    assert (trials["dense"].recipe["learning_rate"], trials["dense"].replaced) == (0.1, {})
    (needed,) = typed.depends_on.values()
    (other,) = (trial for trial in trials.values() if trial.trial_id == needed)
    assert other.recipe["learning_rate"] == 0.3
    one = dataclasses.replace(typed, replaced={})
    assert one.hash == typed.hash


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["dense"], "required: --budget"),
        (["dense", "--budget", "0"], "--budget: '0'; allowed: an integer from 1 to 1,000"),
        (["prunetrain[ratio=0.3]", "--budget", "2"], "prunetrain[ratio=0.3]: ratio is typed and searched at once"),
        (["dense", "--budget", "2", "--set", "recipe.learning_rate=0.1"], "recipe.learning_rate is typed and searched"),
        (
            ["prunetrain", "--budget", "2", "--search", "ratio"],
            "--search ratio: dense has none of these; it can search recipe.learning_rate",
        ),
        (["dense", "--budget", "2", "--search", "rate"], "--search 'rate': no method declares a search of it"),
        (["dense", "--budget", "2", "--set", "recipe.test_images=9"], "tune does not use test images"),
        (["dense", "--budget", "2", "--controls"], "tune: --controls cannot be given"),
        (["dense", "--budget", "2", "--model", "resnet9,vgg11"], "tune searches on one model; name one"),
        (["dense", "--budget", "2", "--set", "recipe.validation_images=1437"], "recipe.validation_images is 1437"),
        (["sdgp[recipe.batch_size=3]", "--budget", "2"], "sdgp has no parameter 'recipe.batch_size'"),
    ],
)
def test_wrong_input_is_one_line_and_writes_nothing(folder, invented, capsys, arguments, expected):
    assert cli.main(["tune", *arguments, *SMALL, "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert expected in error
    assert not (folder / "out").exists()


def test_a_method_with_its_own_learning_rate_is_compared_with_the_others():
    def trial(method, variant="", **fields):
        recipe = {"epochs": 4, **fields.pop("recipe")}
        return recorded(method=method, variant=variant, recipe=recipe, **fields)

    dense = trial("dense", recipe={"learning_rate": 0.1})
    own = trial("sdgp", "recipe.learning_rate=0.3", recipe={"learning_rate": 0.3}, replaced={"learning_rate": 0.1})
    other = trial("sdgp", recipe={"learning_rate": 0.3})
    groups, _ = group_trials([dense, own, other])
    assert [[one.name for one in group.trials] for group in groups] == [[dense.name, own.name], [other.name]]


def test_a_recipe_without_test_images_needs_validation_images():
    with pytest.raises(ValueError, match=r"recipe\.evaluate_test=false needs recipe\.validation_images"):
        dataclasses.replace(RECIPE, evaluate_test=False)


def test_a_damaged_file_is_named(tmp_path):
    assert read_tuned(tmp_path) is None
    (tmp_path / "tune.json").write_text("{")
    with pytest.raises(UsageError, match=r"tune\.json is damaged: "):
        read_tuned(tmp_path)
