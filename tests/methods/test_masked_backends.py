"""The question behind `backend=auto` covers every fact that decides how long a layer's products take."""

from __future__ import annotations

import torch
from torch import nn

from methods.masks import backends as masked
from suite.method import Geometry


def test_each_fact_that_decides_a_time_makes_another_question(monkeypatch):
    asked = []
    monkeypatch.setattr(masked, "choose", lambda question, *rest: asked.append(question))
    layer, geometry = nn.Conv2d(4, 8, 3), Geometry("conv", padding=(1, 1))
    facts = {"images": 2, "size": (8, 8), "dtype": torch.float32, "structure": {"percent": 50.0}}
    for changed in (
        {},
        {"images": 4},
        {"size": (8, 4)},
        {"dtype": torch.bfloat16},
        {"structure": {"percent": 60.0}},
    ):
        masked.fastest(("masked",), lambda: None, layer, geometry, **{**facts, **changed}, hardware_id="")
    masked.fastest(("masked",), lambda: None, nn.Conv2d(4, 9, 3), geometry, **facts, hardware_id="")
    assert len({str(one) for one in asked}) == len(asked) == 6
