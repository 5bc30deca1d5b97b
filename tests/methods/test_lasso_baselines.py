"""PruneTrain's baselines with the same lasso: cut at the end, or once."""

import pytest
import torch

from methods.oneshot import OneShot
from methods.ssl import SSL
from suite.ops import apply
from tasks.models.resnet9 import resnet9

SHAPE = (3, 16, 16)


def epochs_with_a_cut(method, epochs=4):
    """After which epochs something is cut when a channel dies in each."""
    torch.manual_seed(0)
    model = resnet9(width=1 / 16)
    hooks = apply(model, method, input_shape=SHAPE, num_classes=10, epochs=epochs, batch_size=4)
    hooks.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    found = []
    for epoch in range(1, epochs + 1):
        layers = hooks.ctx.layers
        for weight in (layers["reduce.conv"].weight[0], layers["classifier"].weight[:, 0]):
            weight.data.zero_()
        before = layers["reduce.conv"].out_channels
        hooks.end_epoch()
        if layers["reduce.conv"].out_channels < before:
            found.append(epoch)
    return found


def test_ssl_cuts_after_the_last_epoch_alone():
    assert epochs_with_a_cut(SSL()) == [4]


@pytest.mark.parametrize(("at", "epoch"), [(0.01, 1), (0.5, 2), (0.6, 3), (1.0, 4)])
def test_oneshot_cuts_once(at, epoch):
    assert epochs_with_a_cut(OneShot(at=at)) == [epoch]


@pytest.mark.parametrize("at", [0.0, 1.1])
def test_a_share_that_is_none_is_refused(at):
    with pytest.raises(ValueError, match=f"at is {at}; a share of the epochs"):
        OneShot(at=at)
