"""Products outside of convolution and linear layers: attention is counted, everything else is named."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from small_methods import Nothing
from small_training import SHAPE, small_net, small_trainer
from torch import nn

from suite.cost.flops import count
from suite.cost.paper_conventions import prunetrain

ROOT = Path(__file__).parents[2]


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
    named = dict(line.split(" in ", 1) for line in counts.not_counted)
    assert set(named) <= ({"mm", "addmm"} if way.startswith("module") else set())
    total = sum(int(text.partition("(")[2].split()[0].replace(",", "")) for text in named.values())
    assert total == (4 * 4 * 16 * 16 if way.startswith("module") else 0)  # the four projections
    assert prunetrain([row])["train_flops"] == 6 * 512


def test_a_training_with_attention_has_its_rows_in_the_table():
    trainer = small_trainer(Nothing(), model=Attends("module"))
    trainer.fit()
    table = trainer.ledger.to_csv(3)
    assert "attention:attention,attention,16,16" in table
    assert trainer.not_counted
    assert trainer.ledger.inference_flops(effective=True) == trainer.ledger.inference_flops()


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
    assert list(counts.layers) == ["called", "head"]
    text = "\n".join(counts.not_counted)
    assert "convolution in the model's own forward (4,096 multiply-adds per image)" in text  # direct, by its `forward`
    assert "convolution in 'up' (4,096 multiply-adds per image)" in text  # 64 positions, 4 x 4 x 4 weights
    assert "convolution in 'line' (12,288 multiply-adds per image)" in text
    assert f"bmm in the model's own forward ({2 * 6 * 6 * 4} multiply-adds per image)" in text
    assert "in 'memory'" in text
    assert count(small_net(), SHAPE).not_counted == ()
