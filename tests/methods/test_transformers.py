"""Transformers: PruneTrain removes heads and hidden units during a training with AdamW."""

import csv
import dataclasses
import io

import torch
from small_training import CLASSES, RECIPE, assert_it_resumes, small_trainer
from torch import nn

from methods.prunetrain import PruneTrain
from tasks.models.transformers.vision_transformer import EncoderBlock

WIDTH, HEADS = 12, 3
ADAMW = dataclasses.replace(RECIPE, optimizer="adamw", nesterov=False, learning_rate=2e-3, weight_decay=0.05)


class Transformer(nn.Module):
    """Two encoder blocks on four tokens. A head of each block and some hidden units start with small weights."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.blocks = nn.Sequential(EncoderBlock(WIDTH, HEADS, 0.0), EncoderBlock(WIDTH, HEADS, 0.0))
        self.classifier = nn.Linear(WIDTH, CLASSES)
        with torch.no_grad():
            for index, block in enumerate(self.blocks):
                head = slice(4 * index, 4 * index + 4)
                for layer in (block.attention.query, block.attention.key, block.attention.value):
                    layer.weight[head] *= 0.01
                    layer.bias[head] = 0.0
                block.attention.projection.weight[:, head] *= 0.01
                block.mlp.expand.weight[: 5 + index] *= 0.01
                block.mlp.reduce.weight[:, : 5 + index] *= 0.01

    def forward(self, images):
        return self.classifier(self.blocks(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


def trainer(**options):
    torch.manual_seed(0)
    return small_trainer(
        PruneTrain(interval=1, threshold=0.05, update="proximal"), ADAMW, model=Transformer(), **options
    )


def test_prunetrain_removes_heads_and_hidden_units_and_resumes_bit_for_bit():
    whole, *_ = assert_it_resumes(trainer)
    model, ledger = whole.model, whole.ledger
    assert [block.attention.products.heads for block in model.blocks] == [HEADS - 1] * 2
    for index, block in enumerate(model.blocks):
        assert block.attention.query.out_features == block.attention.projection.in_features == WIDTH * 2 // 3
        assert block.mlp.expand.out_features == block.mlp.reduce.in_features <= 4 * WIDTH - 5 - index
        name = f"blocks.{index}.attention.products:attention"
        dense, current = ledger.dense[name], ledger.current[name]
        assert (current.in_channels, current.macs * 3) == (WIDTH * 2 // 3, dense.macs * 2)
    rows = csv.DictReader(io.StringIO(ledger.to_csv(3)))
    widths = [int(row["in_channels"]) for row in rows if row["layer"] == "blocks.0.attention.products:attention"]
    assert (widths[0], widths[-1]) == (WIDTH, WIDTH * 2 // 3)
