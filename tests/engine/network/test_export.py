"""A cut network elsewhere: exported by torch.export and to ONNX, and loaded without the plugin that defines it."""

import re
from pathlib import Path

import pytest
import torch
from cuttable_nets import resnet
from toy_suite import forget_plugins

from suite.checkpoint import load_model
from suite.choices import build_model
from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.surgery import apply_plan
from suite.engine.network.model_files import save_model
from suite.errors import UsageError
from suite.method import ReconfigPlan
from suite.registry import load_plugin

PAGE = (Path(__file__).parents[3] / "docs/networks.md").read_text(encoding="utf-8")
EXPORT, TO_ONNX, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Run the page's export in a folder; return the names that it defines."""
    folder, names = tmp_path_factory.mktemp("export"), {"__name__": "page"}
    torch.manual_seed(0)
    code = EXPORT.replace('"cut.pt2"', repr(str(folder / "cut.pt2")))
    exec(compile(code, "networks.md", "exec"), names)
    return folder, names


def test_the_network_of_the_page_is_cut_and_its_export_computes_the_same(exported):
    folder, names = exported
    model, other = names["model"], torch.randn(5, 3, 32, 32)
    assert sum(p.numel() for p in model.parameters()) < 0.9 * sum(
        p.numel() for p in build_model("resnet9[width=0.0625]", (3, 32, 32), 10).parameters()
    )
    torch.testing.assert_close(torch.export.load(folder / "cut.pt2").module()(other), model(other))


def test_the_network_of_the_page_computes_the_same_as_onnx(exported):
    pytest.importorskip("onnxscript", reason="an export to ONNX needs the packages onnx and onnxscript")
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime to compare outputs")
    folder, names = exported
    code = TO_ONNX.replace('"cut.onnx"', repr(str(folder / "cut.onnx")))
    exec(compile(code, "networks.md", "exec"), names)
    session, images = runtime.InferenceSession(folder / "cut.onnx"), torch.randn(5, 3, 32, 32)
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), names["model"](images), rtol=1e-4, atol=1e-5)


def test_gates_and_removed_branches_are_exported_for_any_number_of_images():
    torch.manual_seed(0)
    model = resnet(2)
    spaces = find_index_spaces(model, (3, 8, 8))
    kept = {part.name: part.original[::2] for part in spaces.split_by_gating(spaces["0"])}
    apply_plan(model, ReconfigPlan(kept=kept, gated=("0",), removed_branches=("4.branch",)), spaces, None)
    program = torch.export.export(
        model.eval(), (torch.randn(2, 3, 8, 8),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
    )
    images = torch.randn(5, 3, 8, 8)
    torch.testing.assert_close(program.module()(images), model(images))


TINY = """
from torch import nn

from suite.registry import register


@register("model", "toy_elsewhere")
def toy_elsewhere(*, num_classes: int = 2):
    "A network for tests."
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))
"""


@pytest.mark.usefixtures("forget_toys")
def test_without_the_plugin_of_a_network_its_file_is_named(tmp_path):
    plugin, path = tmp_path / "tiny.py", tmp_path / "model.pt"
    plugin.write_text(TINY, encoding="utf-8")
    load_plugin(plugin)
    model = build_model("toy_elsewhere", (3, 8, 8), 2)
    about = {"name": "toy_elsewhere", "num_classes": 2, "input_shape": (3, 8, 8), "reconfigurations": []}
    for named, words in (("tiny.py", "the plugin 'tiny.py' defines it"), ("", "if a plugin defines it")):
        save_model(path, model, **about, plugin=named)
        forget_plugins()
        with pytest.raises(UsageError, match=f"no model is called 'toy_elsewhere' here; {words}: call suite.registry."):
            load_model(path)
        load_plugin(plugin)
        assert torch.equal(load_model(path)[0].weight, model[0].weight)
