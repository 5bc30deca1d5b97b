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


@pytest.mark.parametrize("epoch", [1, 3, 4])
def test_oneshot_cuts_once(epoch):
    assert epochs_with_a_cut(OneShot(epoch=epoch)) == [epoch]


def test_an_epoch_that_does_not_come_is_refused():
    with pytest.raises(ValueError, match="epoch is 5; the training has only 4"):
        epochs_with_a_cut(OneShot(epoch=5))
    with pytest.raises(ValueError, match="epoch is 0; the first is 1"):
        OneShot(epoch=0)
