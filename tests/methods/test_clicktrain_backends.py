"""ClickTrain's backends for masked weights: how they are chosen, kept and measured, and that they change no result."""

import pytest
import torch
from small_clicktrain import Run, stages, with_pointwise
from torch import nn

from kernels.sparse_conv.dispatch import available
from methods.backends import autotune
from methods.backends.autotune import Fastest
from methods.dense import Dense
from methods.masks.backends import fastest
from suite.engine.network.products import TorchBackend
from suite.ops import apply, convert
from tasks.models.clicktrain.vgg import vgg11_click


@pytest.fixture(autouse=True)
def choices(monkeypatch, tmp_path):
    """A folder of stored choices for one test."""
    monkeypatch.setenv("PDT_CHOICES", str(tmp_path / "choices"))
    return tmp_path / "choices"


def choice(name):
    return Fastest(name, {}, rounds=0)


@pytest.fixture
def skipping():
    if not available(torch.device("cpu")):
        pytest.skip("no kernels that skip weights")


def train_alike(masked, run):
    """Train both into the masked stage and compare them; return name, layer and weight for each layer of the second."""
    masked.epochs(3)
    run.epochs(3)
    for name, weight in masked.weights().items():
        other = run.weights()[name]
        assert torch.equal(weight == 0, other == 0)
        torch.testing.assert_close(weight, other, rtol=1e-3, atol=1e-4)
    return [(name, run.runner.ctx.layers[name], weight) for name, weight in run.weights().items()]


def test_skipped_weights_change_nothing_but_the_work(skipping):
    masked, skipping = Run(stages()), Run(stages(backend="skipping"))
    for name, layer, other in train_alike(masked, skipping):
        share = float((other != 0).float().mean())
        assert layer.op_plan.backend.executed("forward", None, other, layer.geometry) == pytest.approx(share)
        assert layer.meter.take() == pytest.approx((share,) * 3, rel=0.2)  # the first masked step's products were dense
        assert masked.runner.ctx.layers[name].op_plan.empty
    skipping.runner.finish()
    assert all(layer.op_plan.empty for layer in skipping.runner.ctx.layers.values())


def test_auto_takes_who_was_measured_to_be_fastest(skipping, monkeypatch):
    asked = []

    def fastest(names, prepare, layer, geometry, images, size, dtype, structure, hardware_id):
        kept, backends = prepare()
        asked.append((tuple(kept.shape), images, size))
        assert kept.float().mean() == pytest.approx(0.125, rel=0.05)
        assert names == [*backends] == ["masked", "skipping"]
        assert structure == {"percent": 71.875, "pool": 4, "scope": "kernel", "balance": "layer"}
        return choice("skipping" if size == (16, 16) else "masked")

    monkeypatch.setattr("methods.masks.backends.fastest", fastest)
    run = Run(stages(backend="auto"))
    run.epochs(1)
    assert len(asked) == len(set(asked))  # once for all layers of a shape
    assert all(images == 8 for _, images, _ in asked)
    sizes = run.runner.ctx.spaces.input_sizes
    expected = {name: "skipping" if sizes[name] == (16, 16) else "masked" for name in run.method._percent}
    assert set(expected.values()) == {"skipping", "masked"}
    record = run.method.record(run.runner.ctx)
    assert record["backends"] == {name: one["chosen"] for name, one in record["choices"].items()} == expected
    count = len(asked)
    run.epochs(2)
    assert "choices" not in run.method.record(run.runner.ctx)  # the first epoch's record has them
    assert len(asked) == count
    for name, chosen in expected.items():
        assert (run.runner.ctx.layers[name].op_plan.backend is not None) is (chosen == "skipping")
    resumed = stages(backend="auto")
    resumed.setup(run.runner.ctx)
    resumed.load_state_dict(run.method.state_dict())
    resumed.on_epoch_end(run.runner.ctx)
    assert len(asked) == count  # what was decided is taken from the checkpoint
    name = next(name for name, chosen in expected.items() if chosen == "skipping")
    assert resumed.plan(name, run.runner.ctx.layers[name]).backend is not None


def test_a_trial_does_not_go_on_without_the_kernels_that_it_took(skipping, monkeypatch):
    run = Run(stages(backend="skipping"))
    run.epochs(3)
    again = stages(backend="auto")
    monkeypatch.setattr("methods.masks.backends.available", lambda device: False)
    again.setup(run.runner.ctx)
    with pytest.raises(
        ValueError, match="checkpoint of this trial uses kernels that skip weights, which are not available here"
    ):
        again.load_state_dict(run.method.state_dict())


def test_the_warm_up_is_dense_training_with_dropout_too(skipping):
    """Dropout draws from torch's generator, which a measurement must not use."""

    def states(method):
        torch.manual_seed(0)
        run = Run(method, vgg11_click(width=1 / 16))
        run.weights = dict
        run.epochs(2)
        return run.model.state_dict()

    dense = states(Dense())
    ours = states(stages(backend="auto", warmup=0.5))
    assert all(torch.equal(tensor, ours[name]) for name, tensor in dense.items())


def test_filters_of_one_pattern_are_multiplied_as_blocks(skipping):
    masked, blocks = (Run(stages(scope="filter", backend=backend)) for backend in ("masked", "blocks"))
    for _, layer, weight in train_alike(masked, blocks):
        assert layer.op_plan.backend.name == "blocks"
        assert layer.op_plan.backend.executed("forward", None, weight, layer.geometry) == 4 / 9
    assert blocks.method.record(blocks.runner.ctx)["backends"] == dict.fromkeys(blocks.weights(), "blocks")


def test_auto_weighs_blocks_too_where_filters_have_one_pattern(skipping, monkeypatch):
    asked = []

    def fastest(names, prepare, layer, *rest):
        kept, backends = prepare()
        asked.append([*backends])
        backends["blocks"].forward(torch.zeros(1, kept.shape[1], 4, 4), layer.weight, None, layer.geometry)
        return choice("blocks")

    monkeypatch.setattr("methods.masks.backends.fastest", fastest)
    run = Run(stages(scope="filter", backend="auto"))
    run.epochs(3)
    assert asked
    assert all(names == ["masked", "skipping", "blocks"] for names in asked)
    assert all(run.runner.ctx.layers[name].op_plan.backend.name == "blocks" for name in run.weights())


def test_1x1_convolutions_are_never_blocks_and_other_pools_have_none(skipping, monkeypatch):
    with monkeypatch.context() as patch:
        given = {"hard_prune": 0.25, "pool": 4, "ratios": "cifar10-vgg11_click-1"}
        run = Run(stages(scope="filter", backend="blocks", **given), with_pointwise(patch))
        run.epochs(2, steps=1)
    assert run.method.record(run.runner.ctx)["backends"] == {"1": "masked", "2": "blocks"}
    other = Run(stages(scope="filter", backend="auto", pool=8))
    other.epochs(3, steps=1)
    assert "blocks" not in other.method.record(other.runner.ctx)["backends"].values()


def test_what_is_timed_is_what_will_be_multiplied(skipping, monkeypatch):
    """Measurements use the method's pool, a micro-batch, the padded size, and each share of kernels separately."""
    asked = {}

    def fastest(names, prepare, layer, geometry, images, size, dtype, structure, hardware_id):
        asked[layer.name] = (prepare()[0], images, size)
        return choice("masked")

    monkeypatch.setattr("methods.masks.backends.fastest", fastest)
    monkeypatch.setattr(
        "methods.clicktrain.settings.by_layer", lambda ratios, layers: {"1": 50.0, "2": 75.0, "3": 75.0}
    )
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10),
    )  # fmt: skip
    method = stages(pool=12, backend="auto", ratios="cifar10-vgg11_click-1")
    hooks = apply(model, method, input_shape=(3, 8, 8), num_classes=10, epochs=4, batch_size=12, micro_batches=3)
    method.on_epoch_end(hooks.ctx)
    assert {name: (images, size) for name, (_, images, size) in asked.items()} == {
        "1": (4, (8, 8)), "2": (4, (8, 8)), "3": (4, (10, 10)),
    }  # fmt: skip
    assert [int(kept.sum()) for kept, _, _ in asked.values()] == [4 * 8, 4 * 4, 4 * 4]
    patterns = {tuple(kernel.flatten().tolist()) for kept, _, _ in asked.values() for kernel in kept.flatten(0, 1)}
    assert len(patterns - {(False,) * 9}) > 4


def test_a_measurement_is_of_masked_operands_all_three_products_and_warm(monkeypatch):
    class Recording(TorchBackend):
        def __init__(self):
            self.seen = []

        def forward(self, activation, weight, bias, geometry):
            self.seen.append(("forward", activation.dtype, weight.clone()))
            return super().forward(activation, weight, bias, geometry)

        def dgrad(self, grad, weight, activation, geometry):
            self.seen.append(("dgrad", grad.dtype, weight.clone()))
            return super().dgrad(grad, weight, activation, geometry)

        def wgrad(self, grad, activation, weight, geometry, with_bias):
            self.seen.append(("wgrad", grad.dtype, weight.clone()))
            return super().wgrad(grad, activation, weight, geometry, with_bias)

    (planned,) = convert(nn.Conv2d(3, 4, 3, padding=1, bias=False)).values()
    kept = torch.rand(4, 3, 3, 3) > 0.5
    backend, timed = Recording(), []
    monkeypatch.setattr(autotune, "_seconds", lambda step, *rest: timed.append(len(backend.seen)) or step() or 1.0)
    given = (planned, planned.geometry, 2, (5, 6), torch.bfloat16, {"test": "operands"}, "")
    fastest(["one"], lambda: (kept, {"one": backend}), *given)
    assert timed[0] == 3  # all three ran once before the clock
    assert [product for product, _, _ in backend.seen] == ["forward", "dgrad", "wgrad"] * (len(timed) + 1)
    assert all(dtype == torch.bfloat16 for _, dtype, _ in backend.seen)
    assert not any(weight[~kept].any() for _, _, weight in backend.seen)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scope": "kernel"}, "backend=blocks needs scope=filter and pool=4"),
        ({"scope": "filter", "pool": 8}, "backend=blocks needs scope=filter and pool=4"),
    ],
)
def test_blocks_say_what_they_need(given, message):
    with pytest.raises(ValueError, match=message):
        Run(stages(backend="blocks", **given))


def test_skipping_says_where_it_cannot_be_had(monkeypatch):
    monkeypatch.setattr("methods.masks.backends.available", lambda device: False)
    with pytest.raises(ValueError, match=r"no kernels that skip weights are available on cpu \(.*\); use backend=auto"):
        Run(stages(backend="skipping"))
    run = Run(stages(backend="auto"))
    run.epochs(4)
    assert set(run.method.record(run.runner.ctx)["backends"].values()) == {"masked"}


def test_what_was_measured_is_measured_again_for_other_threads(skipping, monkeypatch):
    monkeypatch.setattr("methods.masks.backends.fastest", lambda *given: choice("skipping"))
    run = Run(stages(backend="auto"))
    run.epochs(3)
    assert all(run.runner.ctx.layers[name].op_plan.backend.name == "skipping" for name in run.weights())
    monkeypatch.setattr("methods.masks.backends.fastest", lambda *given: choice("masked"))
    run.runner.choose_again()
    assert set(run.method.record(run.runner.ctx)["backends"].values()) == {"masked"}
    assert all(run.runner.ctx.layers[name].op_plan.empty for name in run.weights())
