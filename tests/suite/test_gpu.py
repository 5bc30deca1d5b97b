"""The planned op and the training loop on a CUDA device."""

import copy
import io

import pytest
import torch
from small_methods import METHODS
from small_training import CLASSES, SHAPE, SmallBatches, small_net
from test_ops import LAYERS, gradients, identity, planned_copy
from test_trainer import FIVE, without_times

from suite.method import OpPlan
from suite.ops import EMPTY
from suite.task import Splits
from suite.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


class OnDevice:
    """Batches of another split, moved."""

    def __init__(self, inner):
        self.inner, self.num_samples, self.steps_per_epoch = inner, inner.num_samples, inner.steps_per_epoch

    def epoch(self, epoch, batch_size):
        for images, labels in self.inner.epoch(epoch, batch_size):
            yield images.cuda(), labels.cuda()


def cuda_trainer(method, dtype, **callbacks):
    torch.manual_seed(0)
    model = small_net().cuda().to(memory_format=torch.channels_last)
    splits = Splits(OnDevice(SmallBatches(64, seed=1)), OnDevice(SmallBatches(40, seed=2, shuffle=False)))
    device = torch.device("cuda", 0)
    options = {"input_shape": SHAPE, "num_classes": CLASSES, "seed": 0, "device": device, "dtype": dtype}
    return Trainer(model, method, FIVE, splits, **options, **callbacks)


@pytest.mark.parametrize("plan", [EMPTY, OpPlan(grad_dgrad=identity)])
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
        if plan is EMPTY:
            assert torch.equal(tensor, got[name]), name
        else:
            torch.testing.assert_close(tensor, got[name], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_every_operand_and_hook_trains_and_resumes(method, dtype):
    records, states = [], []

    def keep(state):
        file = io.BytesIO()
        torch.save(state(), file)
        states.append(file.getvalue())

    whole = cuda_trainer(method(), dtype, on_epoch=records.append, on_checkpoint=keep)
    whole.fit()
    assert records[-1]["train_loss"] < records[0]["train_loss"]
    assert whole.progress.peak_memory_bytes > 0
    again = []
    resumed = cuda_trainer(method(), dtype, on_epoch=again.append)
    resumed.load_state_dict(torch.load(io.BytesIO(states[2]), map_location="cuda", weights_only=True))
    resumed.fit()
    # Bit-equality is promised on the CPU alone; counted figures are equal everywhere.
    for new, old in zip(again, records[3:], strict=True):
        for key in ("epoch", "step_flops", "train_flops", "params", "inference_flops"):
            assert without_times(new)[key] == without_times(old)[key]
