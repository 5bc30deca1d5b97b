"""The network of airbench94: its size, its first layer and its initialisation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from suite.engine.cost.flops import count_layers
from suite.engine.network.channels.spaces import find_index_spaces
from suite.trials.building import initialize
from tasks.cifar10 import CIFAR10
from tasks.models.airbench import SMALLEST_EIGENVALUE, Airbench, airbench


@pytest.mark.parametrize(("width", "parameters"), [(1.0, 1.97), (0.75, 1.11), (0.5, 0.50)])
def test_parameters_in_millions(width: float, parameters: float) -> None:
    assert round(sum(one.numel() for one in airbench(width=width).parameters()) / 1e6, 2) == parameters


def test_layers_and_what_is_trained() -> None:
    model = airbench(width=0.25)
    assert isinstance(model, Airbench)
    fixed = [name for name, one in model.named_parameters() if not one.requires_grad]
    assert fixed == ["whiten.weight"] + [f"groups.{group}.norm{place}.weight" for group in range(3) for place in (1, 2)]
    assert not model.whiten.bias.any()
    for group in model.groups:
        for layer in (group.conv1, group.conv2):
            same = min(layer.weight.shape[:2])
            identity = torch.zeros(same, layer.in_channels, 3, 3)
            identity[range(same), range(same), 1, 1] = 1
            assert torch.equal(layer.weight[:same], identity)
            assert layer.weight[layer.in_channels :].abs().sum() > 0 or layer.out_channels <= layer.in_channels
    images = torch.randn(2, 3, 32, 32)
    x = F.gelu(model.whiten(images))
    sizes = []
    for group in model.groups:
        x = F.gelu(group.norm1(F.max_pool2d(group.conv1(x), 2)))
        x = F.gelu(group.norm2(group.conv2(x)))
        sizes.append(x.shape[2])
    assert sizes == [15, 7, 3]
    torch.testing.assert_close(model(images), F.max_pool2d(x, 3).flatten(1) @ model.classifier.weight.T / 9)


def test_the_first_layer_whitens_patches_of_training_images() -> None:
    task = CIFAR10()
    splits = task.load(task.prepare(Path(), "smoke"), task.recipe("smoke"), 0, torch.device("cpu"))
    models = [airbench(width=0.25) for _ in range(2)]
    for model in models:
        initialize(model, splits, 0)
    first, again = (model.get_submodule("whiten").weight for model in models)
    assert torch.equal(first, again)
    assert torch.equal(first[:12], -first[12:])
    images = splits.train.sample(5_000, 0)  # type: ignore[attr-defined]
    outputs = F.conv2d(images, first[:12]).transpose(0, 1).flatten(1).double()
    moment = outputs @ outputs.T / outputs.shape[1]
    torch.testing.assert_close(moment, moment.diag().diag(), rtol=0, atol=1e-4)
    variances = 1 / (first[:12].flatten(1).double().square().sum(1)) - SMALLEST_EIGENVALUE
    torch.testing.assert_close(moment.diag(), variances / (variances + SMALLEST_EIGENVALUE), rtol=1e-3, atol=1e-4)
    assert list(variances) == sorted(variances, reverse=True)


def test_a_sample_is_balanced_and_depends_on_the_seed() -> None:
    task = CIFAR10()
    splits = task.load(task.prepare(Path(), "smoke"), task.recipe("smoke"), 0, torch.device("cpu"))
    ordered = torch.cat([images for images, _ in splits.train._ordered([range(splits.train.num_samples)])])  # type: ignore[attr-defined]

    def drawn(seed: int) -> list[int]:
        found = splits.train.sample(50, seed)  # type: ignore[attr-defined]
        return torch.cdist(found.flatten(1), ordered.flatten(1)).argmin(1).tolist()

    places = drawn(0)
    assert len(set(places)) == 50
    assert splits.train.labels[places].bincount().tolist() == [5] * 10  # type: ignore[attr-defined]
    assert drawn(0) == places != drawn(1)


def test_all_channels_are_followed_and_fixed_weights_have_no_gradient() -> None:
    model = airbench(width=0.25)
    spaces = find_index_spaces(model, (3, 32, 32))
    assert not spaces.not_followed
    assert [name for name, one in spaces.items() if not one.frozen]
    costs = count_layers(model, (3, 32, 32))
    assert [costs["whiten"].flops(product) for product in ("dgrad", "wgrad")] == [0, 0]
    assert costs["whiten"].flops("forward") == 2 * 24 * 12 * 31 * 31
    assert costs["groups.0.conv1"].flops("dgrad") == 2 * 16 * 24 * 9 * 31 * 31  # for the bias of the first layer


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="width"):
        airbench(width=0.3)
    with pytest.raises(ValueError, match="9x9"):
        airbench(input_shape=(3, 8, 32))
    assert airbench(width=0.25, input_shape=(1, 9, 9)).eval()(torch.zeros(2, 1, 9, 9)).shape == (2, 10)
