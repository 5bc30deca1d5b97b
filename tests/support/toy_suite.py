"""A method, a task and a model that depend on no other of the project, and the command line in a separate process."""

import subprocess
import sys
import textwrap
from pathlib import Path

from suite import registry

ROOT = Path(__file__).resolve().parents[2]

TOY = textwrap.dedent(
    """
    from typing import Literal

    from torch import nn

    from suite.errors import MissingData, UsageError
    from suite.method import Method
    from suite.recipe import Recipe
    from suite.registry import register
    from suite.task import DataCopy, Splits, Task

    @register("method", "toy_method")
    class ToyMethod(Method):
        '''A method for tests.'''
        source = "nowhere"
        n: int = 2
        mode: Literal["random", "magnitude"] = "magnitude"

        def __post_init__(self):
            if self.n > 4:
                raise ValueError(f"n is {self.n}; the largest is 4")

        @classmethod
        def defaults(cls, task, preset):
            return {"n": 1} if preset == "smoke" else {}

    class ToyBatches:
        num_samples = 12

        def steps_per_epoch(self, batch_size):
            if batch_size > 12:
                raise UsageError("a batch of 13 is more than the 12 images")
            return 12 // batch_size

    @register("task", "toy_task")
    class ToyTask(Task):
        '''A task for tests.'''
        title = "Toy"
        num_classes = 3
        input_shape = (1, 8, 8)

        def default_model(self, preset):
            return "toy_model[width=2]"

        def recipe(self, preset):
            return Recipe(epochs=3, batch_size=4, learning_rate=1)

        def prepare(self, data_root, preset, recipe=None):
            return DataCopy("original", "ab" * 32, note="made up")

        def load(self, copy, recipe, seed, device):
            return Splits(ToyBatches(), ToyBatches())

    @register("task", "missing_task")
    class MissingTask(ToyTask):
        '''A task without data.'''

        def prepare(self, data_root, preset, recipe=None):
            raise MissingData("toys are sold out")

    @register("model", "toy_model")
    def toy_model(*, width: float = 1.0, num_classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
        '''A model for tests.'''
        if width <= 0:
            raise ValueError(f"width is {width}; it must be positive")
        return nn.Sequential(nn.Conv2d(input_shape[0], int(8 * width), 3), nn.Flatten(), nn.LazyLinear(num_classes))
    """
)
GOOD = ["--plugin", "toy.py", "--methods", "toy_method", "--task", "toy_task", "--device", "cpu", "--preset", "smoke"]


def good(*arguments):
    """Return the command line `GOOD` with further options, which replace those of `GOOD`."""
    pairs = list(zip(GOOD[::2], GOOD[1::2], strict=True))
    kept = [pair for pair in pairs if pair[0] == "--plugin" or pair[0] not in arguments]
    return [*(text for pair in kept for text in pair), *arguments]


def forget_plugins(*kept):
    """Remove what plugins registered and imported, except for the names in `kept`."""
    gone = [key for key in registry._plugin_entries if key[1] not in kept]
    origins = {registry._plugin_entries[key].origin for key in gone}
    for key in gone:
        registry._objects.pop(key, None)
        del registry._plugin_entries[key]
    for origin in origins:
        registry._plugin_sources.pop(origin, None)
    modules = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    for name in [name for name, file in modules.items() if name.startswith("pdt_plugin_") and file in origins]:
        del sys.modules[name]


# Ends each trial with the status that parameter n of its method selects, without training.
CHILD = textwrap.dedent(
    """
    import os
    import sys
    from pathlib import Path
    from suite.trials.process import watch_parent
    from suite.trials.folder.records import FILES, read_record, write_record

    watch_parent()
    folder = Path(sys.argv[1])
    spec = read_record(folder).spec
    with open(folder / "starts", "a") as file:
        file.write("x")
    (folder / "threads").write_text(os.environ["OMP_NUM_THREADS"])
    for name in FILES:
        (folder / name).touch()
    if spec.parameters.get("n") == 3:
        raise RuntimeError("three is too many")
    result = {"test_accuracy": 0.75, "train_time_s": 2.0, "train_flops_dense": 4, "train_flops_executed": 4}
    write_record(folder, spec, "done", result={**result, "train_flops_effective": 3.0})
    """
)


def pdt(*arguments, **keywords):
    command = [sys.executable, str(ROOT / "run_suite.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **keywords)


def listing(folder):
    return sorted((str(path), path.stat().st_size) for path in folder.rglob("*"))


def starts(out):
    return sorted(len(path.read_text()) for path in out.glob("trials/*/starts"))


def assert_one_line(errors, expected):
    """Return the error message, which must be a single line."""
    assert errors.startswith("pdt: error: ")
    assert errors.count("\n") == 1
    assert expected in errors
