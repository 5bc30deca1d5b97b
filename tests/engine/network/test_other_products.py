"""Products outside of convolution and linear layers: matrix products are counted, everything else is named."""

import csv
import io
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from small_methods import Nothing
from small_training import SHAPE, fitted, small_net
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from suite.engine.cost.flops import MATRIX_PRODUCTS, PRODUCTS, count, count_model
from suite.engine.cost.paper_conventions import prunetrain, read_intervals

ROOT = Path(__file__).parents[3]


class Attends(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way, self.patches, self.head = way, nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 4)
        if way.startswith("module"):
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, images):
        rows = self.patches(images).flatten(2).transpose(1, 2)
        if self.way.startswith("module"):
            rows, _ = self.attention(rows, rows, rows, need_weights=self.way == "module with weights")
        elif self.way == "function":
            heads = rows.unflatten(2, (2, 8)).transpose(1, 2)
            rows = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)
        else:
            rows = (rows @ rows.transpose(1, 2) / 4).softmax(2) @ rows
        return self.head(rows.mean(1))


@pytest.mark.parametrize("way", ["module", "module with weights", "function"])
def test_attention_is_counted_in_a_row_of_its_own(way):
    counts = count(Attends(way), SHAPE)
    name = "attention:attention" if way.startswith("module") else ":attention"
    row = counts.layers[name]
    # Queries by keys, and weights by values: 4 x 4 x 16 multiply-adds each, both heads together.
    assert (row.kind, row.macs, row.params) == ("attention", 2 * 4 * 4 * 16, 0)
    assert (row.in_channels, row.input, row.output) == (16, (4, 1), (4, 1))
    # Each of the two products has two data gradients and no weight gradient.
    assert [row.flops(product) for product in ("forward", "dgrad", "wgrad")] == [2 * 512, 4 * 512, 0]
    assert counts.not_counted == ()
    projections = {name: cost for name, cost in counts.layers.items() if cost.weight}
    if way.startswith("module"):
        assert list(projections) == ["attention:in_proj_weight", "attention:out_proj.weight"]
        packed, last = projections.values()
        assert (packed.in_channels, packed.out_channels, packed.params) == (16, 48, 48 * 17)
        assert (last.in_channels, last.out_channels, last.params) == (16, 16, 16 * 17)
        for cost, macs in ((packed, 4 * 16 * 48), (last, 4 * 16 * 16)):
            assert cost.kind == "linear"
            assert [cost.flops(product) for product in PRODUCTS] == [2 * macs] * 3
    else:
        assert not projections
    assert prunetrain([row])["train_flops"] == 6 * 512


def test_a_training_with_attention_has_its_rows_in_the_table():
    trainer, _ = fitted(Nothing(), model=Attends("module"))
    table = trainer.ledger.to_csv(3)
    assert "attention:attention,attention,16,16" in table
    assert "attention:in_proj_weight,linear,16,48,1x1,1x1,1x1,816,1.0," in table
    assert trainer.not_counted == ()
    assert trainer.ledger.inference_flops(effective=True) == trainer.ledger.inference_flops()
    rows = {row["layer"]: row for row in csv.DictReader(io.StringIO(table))}
    row = rows["attention:in_proj_weight"]
    for product in PRODUCTS:  # three epochs of 64 images
        for column in ("dense", "current", "effective", "executed"):
            assert float(row[f"{product}_{column}"]) == 3 * 64 * 2 * 4 * 16 * 48
    total = sum(cost.flops(product) for cost in count(trainer.model, SHAPE).layers.values() for product in PRODUCTS)
    whole = trainer.ledger.inference_flops(effective=True)
    trainer.model.attention.in_proj_weight.data[:12] = 0.0  # a quarter
    assert trainer.ledger.inference_flops(effective=True) == whole - 2 * 4 * 16 * 48 / 4
    assert trainer.ledger.train_flops["executed"] == 3 * 64 * total
    (interval,) = read_intervals(rows.values())
    assert prunetrain(interval.layers) == prunetrain(trainer.ledger.current.values())


class Written(nn.Module):
    """Products whose factors are parameters, constants and activations, some of which need no gradient."""

    def __init__(self):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 4)
        self.line, self.mix = nn.Linear(16, 8), nn.Parameter(torch.zeros(8, 16))
        self.frozen = nn.Parameter(torch.zeros(16, 16), requires_grad=False)
        self.register_buffer("constant", torch.zeros(16, 16))
        self.pixels = nn.Parameter(torch.zeros(3, 5))

    def forward(self, images):
        rows = self.patches(images).flatten(2).transpose(1, 2)
        rows = F.linear(rows, self.line.weight, self.line.bias) @ self.mix
        rows = rows @ self.frozen @ self.constant
        weights = torch.einsum("nic,njc->nij", rows, rows)
        scale = (images.flatten(2).transpose(1, 2) @ self.pixels).mean()
        return self.head((weights @ rows).mean(1) * scale)


def test_each_factor_of_a_written_product_has_the_gradient_that_it_needs():
    counts = count(Written(), SHAPE)
    assert counts.not_counted == ()
    rows = {name: cost for name, cost in counts.layers.items() if ":" in name}
    found = {name: (cost.kind, [cost.flops(product) // 2 for product in PRODUCTS]) for name, cost in rows.items()}
    one, pixels, gram = 4 * 16 * 8, 64 * 3 * 5, 2 * 4 * 4 * 16
    assert found == {
        ":line.weight": ("linear", [one, one, one]),
        ":mix": ("linear", [one, one, one]),
        ":frozen": ("linear", [2 * one, 2 * one, 0]),
        # A constant has no gradient, and each factor of the other two products has one.
        ":matmul": ("attention", [2 * one + gram, 2 * one + 2 * gram, 0]),
        ":pixels": ("linear", [pixels, 0, pixels]),
    }
    assert {name: cost.params for name, cost in rows.items()} == {
        ":line.weight": 8 * 16 + 8, ":mix": 128, ":frozen": 256, ":matmul": 0, ":pixels": 15
    }  # fmt: skip
    assert (rows[":mix"].in_channels, rows[":mix"].out_channels) == (8, 16)
    assert not rows[":pixels"].has_dgrad


def test_a_weight_that_is_also_used_by_its_layer_has_a_row_of_its_own_and_no_further_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(192, 8), nn.Linear(8, 8)

        def forward(self, images):
            return F.linear(self.second(self.first(images.flatten(1))), self.second.weight)

    model = Tied()
    counts = count(model, SHAPE)
    assert [cost.macs for cost in counts.layers.values()] == [192 * 8, 64, 64]
    assert list(counts.layers) == ["first", "second", ":second.weight"]
    assert sum(cost.params for cost in counts.layers.values()) == sum(one.numel() for one in model.parameters())


def torchvisions(name):
    """Return a small network of one of torchvision's kinds of transformers."""
    models = pytest.importorskip("torchvision").models
    if name == "vit":
        return models.VisionTransformer(32, 8, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=32)
    if name == "maxvit":
        return models.MaxVit((32, 32), 8, 2, [8, 16], [1, 1], 4, 0.0)
    swin = models.swin_transformer
    second = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
    return models.SwinTransformer([4, 4], 16, [2, 1], [2, 2], [2, 2], **(second if name == "swin_v2" else {}))


@pytest.mark.parametrize("name", ["vit", "swin", "swin_v2", "maxvit"])
def test_products_of_torchvisions_transformers_are_those_of_torchs_counter(name):
    shape = (3, 32, 32)
    with torch.device("meta"):  # shapes are enough
        model = torchvisions(name).eval()
        images = torch.randn(1, *shape)
    counts = count(model, shape)
    # Without fused attention, whose backward recomputes a product, and with gradients, so that no fast path is taken.
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        logits = model(images)
        forward = counter.get_total_flops()
        logits.sum().backward()
    assert counts.not_counted == ()
    assert count_model(model, shape)["inference_flops"] == forward
    # The counter multiplies groups of convolutions into their backward: products of matrices are compared.
    by_operation = counter.get_flop_counts()["Global"]
    matrices = sum(by_operation.get(getattr(torch.ops.aten, operation), 0) for operation in MATRIX_PRODUCTS)
    rows = [cost for cost in counts.layers.values() if cost.kind != "conv"]
    assert sum(cost.flops(product) for cost in rows for product in PRODUCTS) == matrices


class Others(nn.Module):
    """A model with every kind of product that is neither a planned layer's nor attention's."""

    def __init__(self):
        super().__init__()
        self.called = nn.Conv2d(3, 4, 3, padding=1)
        self.line, self.up = nn.Conv1d(4, 4, 3, padding=1), nn.ConvTranspose2d(4, 4, 2, 2)
        self.direct, self.memory, self.head = nn.Conv2d(4, 4, 1), nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 4)

    def forward(self, images):
        y = self.direct.forward(self.up(self.called(images)))
        rows = self.line(y.flatten(2)).transpose(1, 2)[:, :6]
        rows = torch.einsum("nij,nkj->nik", rows, rows) @ rows
        return self.head(self.memory(rows)[0].mean(1))


def test_whatever_else_multiplies_is_named_with_its_place():
    counts = count(Others(), SHAPE)
    assert list(counts.layers) == ["called", "head", ":matmul"]
    assert counts.layers[":matmul"].macs == 2 * 6 * 6 * 4
    text = "\n".join(counts.not_counted)
    assert "convolution in the model's own forward (4,096 multiply-adds per image)" in text  # direct, by its `forward`
    assert "convolution in 'up' (4,096 multiply-adds per image)" in text  # 64 positions, 4 x 4 x 4 weights
    assert "convolution in 'line' (12,288 multiply-adds per image)" in text
    assert "bmm" not in text
    assert "in 'memory'" in text
    assert count(small_net(), SHAPE).not_counted == ()
