"""PruneTrain's baselines with the same lasso, which remove channels once: at the end, or before."""

import math
from types import SimpleNamespace

import pytest
import torch

from methods.prunetrain.lasso import lasso_layers, penalty
from methods.prunetrain.oneshot import OneShot
from methods.prunetrain.ssl import SSL
from suite.engine.network.model_files import save_model
from suite.errors import UsageError
from suite.method import OtherTrial, ReconfigPlan
from suite.ops import apply
from tasks.models.resnet9 import resnet9

SHAPE = (3, 16, 16)


def epochs_with_a_cut(method, epochs=4):
    """Return the epochs after which channels are removed if one dies in each epoch."""
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


def test_a_share_that_is_a_whole_number_of_epochs_is_not_rounded_up():
    assert 0.28 * 25 > 7
    done = [epoch for epoch in range(1, 26) if OneShot(at=0.28).cuts_now(SimpleNamespace(epochs=25, epochs_done=epoch))]
    assert done == [7]


@pytest.mark.parametrize("at", [0.0, 1.1])
def test_a_share_that_is_none_is_refused(at):
    with pytest.raises(ValueError, match=f"at is {at}; allowed: "):
        OneShot(at=at)


def trained(tmp_path, width=1 / 16):
    """A `model.pt` of a network whose weights differ from new ones."""
    torch.manual_seed(7)
    model = resnet9(width=width)
    path = tmp_path / "model.pt"
    name = f"resnet9[width={width}]"
    save_model(path, model, name=name, num_classes=10, input_shape=SHAPE, reconfigurations=[])
    return path, model


def begun(method, others=None):
    torch.manual_seed(0)
    model = resnet9(width=1 / 16)
    return apply(model, method, input_shape=SHAPE, num_classes=10, epochs=2, batch_size=4, others=others)


def test_ssl_begins_with_the_weights_of_a_file(tmp_path):
    path, model = trained(tmp_path)
    method = SSL(from_trained=str(path))
    assert method.depends_on() == ()
    hooks = begun(method)
    for name, tensor in hooks.model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])


def test_ssl_begins_with_the_weights_of_another_trial(tmp_path):
    path, model = trained(tmp_path)
    method = SSL(from_trained="dense")
    assert (method.depends_on(), dict(method.files())) == (("dense",), {})
    hooks = begun(method, {"dense": OtherTrial((), 1.0, path)})
    assert torch.equal(hooks.ctx.layers["reduce.conv"].weight, model.state_dict()["reduce.conv.weight"])


def test_the_coefficient_from_trained_weights_is_that_of_new_ones(tmp_path):
    path, _ = trained(tmp_path)
    torch.manual_seed(0)
    new = begun(SSL())
    cost = penalty(lasso_layers(new.ctx.layers, new.ctx.spaces).values()).item()
    hooks = begun(SSL(from_trained=str(path), ratio=0.3))
    coefficient = hooks.method.state_dict()["penalty_coefficient"]
    guessing = math.log(10)
    assert coefficient * cost / (guessing + coefficient * cost) == pytest.approx(0.3)
    term = hooks.regularization(torch.tensor(1e-3))  # the small loss of a trained network changes nothing
    assert hooks.method.state_dict()["penalty_coefficient"] == coefficient
    assert term.item() == pytest.approx(
        coefficient * penalty(lasso_layers(hooks.ctx.layers, hooks.ctx.spaces).values()).item()
    )


def test_by_size_the_coefficient_is_that_of_new_weights_too(tmp_path):
    path, _ = trained(tmp_path)
    torch.manual_seed(0)
    new = begun(SSL())
    cost = penalty(lasso_layers(new.ctx.layers, new.ctx.spaces).values(), by_size=True).item()
    hooks = begun(SSL(from_trained=str(path), ratio=0.3, coefficient="size"))
    coefficient = hooks.method.state_dict()["penalty_coefficient"]
    assert coefficient * cost / (math.log(10) + coefficient * cost) == pytest.approx(0.3)


def test_a_method_in_brackets_is_no_file():
    assert SSL(from_trained="ssl[from_trained=./x.pt]").depends_on() == ("ssl[from_trained=./x.pt]",)


def test_another_trial_without_a_file_is_refused():
    with pytest.raises(UsageError, match="the trial of 'dense' has no model_file"):
        begun(SSL(from_trained="dense"), {"dense": OtherTrial((), 1.0)})


def test_another_network_is_refused_by_the_first_tensor_that_differs(tmp_path):
    path, _ = trained(tmp_path, width=1 / 8)
    with pytest.raises(UsageError, match=r"from_trained: .*model\.pt holds another network .*'prep\.conv\.weight'"):
        begun(SSL(from_trained=str(path)))


def test_what_is_watched_is_the_largest_weight_of_each_channel_before_zeroing():
    hooks = begun(SSL(watch=True, threshold=0.5, zeroing="dead"))
    hooks.attach(torch.optim.SGD(hooks.model.parameters(), lr=0.1))
    expected = {
        name: layer.weight.detach().flatten(1).abs().amax(1).tolist() for name, layer in hooks.ctx.layers.items()
    }
    hooks.end_epoch()
    hooks.end_epoch()  # the last: what is dead is set to zero and cut
    peaks = hooks.method.record(hooks.ctx)["peaks"]
    assert peaks.keys() == expected.keys()
    for name, values in expected.items():
        assert peaks[name]["peaks"] == pytest.approx(values, rel=5e-3)
        assert peaks[name]["channels"] == list(range(len(values)))
    assert hooks.ctx.layers["reduce.conv"].out_channels < len(expected["reduce.conv"])
    assert SSL().record(hooks.ctx) == {}


def test_watched_channels_have_their_original_numbers():
    hooks = begun(SSL(watch=True, threshold=1e-6))
    hooks.apply_plan(ReconfigPlan(kept={"reduce.conv": [1, 5, 6]}))
    hooks.attach(torch.optim.SGD(hooks.model.parameters(), lr=0.1))
    hooks.end_epoch()
    assert hooks.method.record(hooks.ctx)["peaks"]["reduce.conv"]["channels"] == [1, 5, 6]
