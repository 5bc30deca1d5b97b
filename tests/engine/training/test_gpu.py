"""The planned op and the training loop on a CUDA device."""

import copy
import dataclasses

import pytest
import torch
from planned_layers import LAYERS, gradients, identity, planned_copy
from small_methods import (
    METHODS,
    REPLAYED,
    HashedChannels,
    Nothing,
    RandomChannels,
    Replans,
    Shrinks,
)
from small_training import CLASSES, RECIPE, SHAPE, Checkpoints, SmallBatches, small_net, without_times

from methods.sdgp import SDGP
from suite.engine.training.cuda_graph import KeyBuffer
from suite.engine.training.trainer import Trainer
from suite.method import EMPTY_PLAN, OpPlan
from suite.plan import random_key
from suite.task import Splits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


FIVE = dataclasses.replace(RECIPE, epochs=5)


class OnDevice:
    """Batches of another split, moved."""

    def __init__(self, inner):
        self.inner, self.num_samples, self.steps_per_epoch = inner, inner.num_samples, inner.steps_per_epoch

    def epoch(self, epoch, batch_size):
        for images, labels in self.inner.epoch(epoch, batch_size):
            yield images.cuda(), labels.cuda()


def cuda_trainer(method, dtype, recipe=FIVE, **callbacks):
    torch.manual_seed(0)
    model = small_net().cuda().to(memory_format=torch.channels_last)
    splits = Splits(OnDevice(SmallBatches(64, seed=1)), OnDevice(SmallBatches(40, seed=2, shuffle=False)))
    device = torch.device("cuda", 0)
    options = {"input_shape": SHAPE, "num_classes": CLASSES, "seed": 0, "device": device, "dtype": dtype}
    return Trainer(model, method, recipe, splits, **options, **callbacks)


@pytest.mark.parametrize("plan", [EMPTY_PLAN, OpPlan(grad_dgrad=identity)])
@pytest.mark.parametrize("case", [name for name in LAYERS if name != "unbatched"])
def test_empty_plan_is_bit_identical_and_identity_close(case, plan):
    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    make, shape = LAYERS[case]
    layer, inputs = make(), torch.randn(shape)
    layer, inputs = layer.cuda(), inputs.cuda()
    with torch.autocast("cuda", torch.bfloat16):
        expected, got = gradients(layer, inputs), gradients(planned_copy(copy.deepcopy(layer), plan), inputs)
    for name, tensor in expected.items():
        if plan is EMPTY_PLAN:
            assert torch.equal(tensor, got[name]), name
        else:
            torch.testing.assert_close(tensor, got[name], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", METHODS)
def test_every_operand_and_hook_trains_and_resumes(method, dtype):
    records, states = [], Checkpoints()
    whole = cuda_trainer(method(), dtype, on_epoch=records.append, on_checkpoint=states.keep)
    whole.fit()
    assert records[-1]["train_loss"] < records[0]["train_loss"]
    assert whole.progress.peak_memory_bytes > 0
    again = []
    resumed = cuda_trainer(method(), dtype, on_epoch=again.append)
    resumed.load_state_dict(states[2])
    resumed.fit()
    # Bit-equality is promised on the CPU alone; counted figures are equal everywhere.
    for new, old in zip(again, records[3:], strict=True):
        for key in ("epoch", "step_flops", "train_flops", "params", "inference_flops"):
            assert without_times(new)[key] == without_times(old)[key]


def fitted(method, execution, dtype):
    records = []
    torch.manual_seed(0)
    trainer = cuda_trainer(method(), dtype, dataclasses.replace(FIVE, execution=execution), on_epoch=records.append)
    trainer.fit()
    return trainer, records


@pytest.fixture
def deterministic():
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = False


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", [*REPLAYED, SDGP, lambda: SDGP(mode="rescaled")])
def test_replayed_steps_are_eager_ones(method, dtype, deterministic):
    eager, expected = fitted(method, "eager", dtype)
    replayed, records = fitted(method, "cuda_graph", dtype)
    for name, tensor in eager.model.state_dict().items():
        torch.testing.assert_close(replayed.model.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)
    for new, old in zip(records, expected, strict=True):
        assert new["step_flops"] == old["step_flops"]
        assert new["learning_rate"] == old["learning_rate"]
        assert new["train_loss"] == pytest.approx(old["train_loss"], rel=1e-3)
    assert replayed.clock.seconds["compile"] > 0


def test_replayed_masks_are_those_of_eager_and_differ_from_step_to_step(deterministic):
    """Two steps on one batch: gradients differ by their masks alone."""
    images, labels = next(iter(OnDevice(SmallBatches(64, seed=1)).epoch(0, 16)))
    found = {}
    for execution in ("eager", "cuda_graph"):
        trainer = cuda_trainer(HashedChannels(), torch.float32, dataclasses.replace(FIVE, execution=execution))
        trainer.model.train()
        trainer.step.prepare(images, labels)
        for step in range(4):
            trainer.step.gradients(images, labels)
            found[execution, step] = trainer.model[4].weight.grad.clone()
            trainer.optimizer.zero_grad(set_to_none=True)
            trainer.runner.end_step()
    for step in range(4):
        torch.testing.assert_close(found["cuda_graph", step], found["eager", step], rtol=1e-5, atol=1e-6)
        assert all(not torch.equal(found["cuda_graph", step], found["cuda_graph", other]) for other in range(step))


def test_keys_of_queued_steps_are_not_overwritten():
    buffer = KeyBuffer(1, seed=7, device=torch.device("cuda", 0))
    key, found = buffer.of("a", "grad_dgrad", 0), []
    buffer.fill(0)
    torch.cuda._sleep(10**9)  # clock cycles: what follows is queued, and fill does not wait for it
    for step in range(1, 5):
        buffer.fill(step)
        found.append(key.clone())
    assert [key.item() for key in found] == [random_key(7, step, 0, "grad_dgrad", "a") for step in range(1, 5)]


def test_peak_memory_of_replayed_steps_has_what_the_graph_keeps():
    trainer = cuda_trainer(Nothing(), torch.float32, dataclasses.replace(FIVE, execution="cuda_graph"))
    trainer.train_epoch()
    assert trainer.progress.peak_memory_bytes == torch.cuda.max_memory_reserved()


def test_changed_networks_and_new_plans_are_captured_anew(deterministic):
    for method in (Shrinks, Replans):
        replayable = type(f"Replayable{method.__name__}", (method,), {"replayable": True})
        eager, expected = fitted(method, "eager", torch.float32)
        replayed, records = fitted(replayable, "cuda_graph", torch.float32)
        assert [record["params"] for record in records] == [record["params"] for record in expected]
        for name, tensor in eager.model.state_dict().items():
            torch.testing.assert_close(replayed.model.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", [Nothing, RandomChannels])
def test_compiled_steps_are_eager_ones_within_rounding(method, deterministic):
    torch._dynamo.reset()
    eager, expected = fitted(method, "eager", torch.float32)
    compiled, records = fitted(method, "compile", torch.float32)
    assert list(compiled.model.state_dict()) == list(eager.model.state_dict())
    for new, old in zip(records, expected, strict=True):
        assert new["train_loss"] == pytest.approx(old["train_loss"], rel=1e-2)
