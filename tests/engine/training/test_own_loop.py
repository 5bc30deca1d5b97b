"""What a loop of one's own may get wrong is refused in one line, and its files continue with equal bits."""

import dataclasses
import io
import pickle
import random
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from own_loops import METHODS, Loop, net
from small_methods import Nothing, Shrinks
from small_training import CLASSES, RECIPE, SHAPE, SmallBatches, small_net
from torch import nn
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel

from methods.clicktrain import ClickTrain
from methods.sdgp import SDGP
from suite.checkpoint import load_model
from suite.engine.training import own_loop
from suite.errors import UsageError
from suite.method import ReconfigPlan
from suite.ops import apply, restore

RECIPE = dataclasses.replace(RECIPE, momentum=0.9, nesterov=False, weight_decay=0.0, epochs=4)
IMAGES, LABELS = next(SmallBatches(64, seed=1).epoch(0, 16))


def hooks(method, model=None, **context):
    sizes = {"input_shape": SHAPE, "num_classes": CLASSES, "epochs": 4, "batch_size": 16}
    return apply(model or net(), method, **(sizes | context))


def sgd(*parameters):
    return torch.optim.SGD(parameters, lr=0.1)


# The term of a step


def test_the_term_is_asked_for_once_a_step_and_has_a_backward():
    own = hooks(METHODS["prunetrain"]())
    own.attach(sgd(*own.model.parameters()))
    loss = F.cross_entropy(own.model(IMAGES), LABELS)
    term = own.regularization(loss)
    with pytest.raises(UsageError, match=r"hooks\.regularization was called twice in step 0: call it once a step"):
        own.regularization(loss)
    loss.backward()
    with pytest.raises(UsageError, match="had no backward, so that the method would have no effect"):
        own.optimizer_step()
    term.backward()
    own.optimizer_step()
    own.regularization(loss.item())  # a number is as good as a tensor
    own.end_step()  # a skipped step needs no backward
    own.regularization(loss).backward()
    own.optimizer_step()


@pytest.mark.parametrize("name", ["dense", "prunetrain", "clicktrain"])
def test_the_term_has_a_backward_for_every_method_and_may_be_added_to_the_loss(name):
    own = hooks(METHODS[name]())
    own.attach(sgd(*own.model.parameters()))
    grads = []
    for add in (True, False):
        own.model.zero_grad()
        loss = F.cross_entropy(own.model(IMAGES), LABELS)
        if add:
            (loss + own.regularization(loss)).backward()
        else:
            loss.backward()
            own.regularization(loss).backward()
        grads.append([one.grad for one in own.model.parameters()])
        own.end_step()
    for first, second in zip(*grads, strict=True):
        assert torch.equal(first, second)


def test_a_wrong_number_of_a_micro_batch_and_a_term_without_gradients_are_refused():
    own = hooks(Nothing())
    with torch.no_grad(), pytest.raises(UsageError, match=r"called inside torch\.no_grad\(\)"):
        hooks(METHODS["prunetrain"]()).regularization(1.0)
    with pytest.raises(UsageError, match=r"micro-batches are counted from 0 to 1"):
        own.begin_micro_batch(2, 2)
    with pytest.raises(UsageError, match="the mean loss of a batch, not 3 numbers"):
        own.regularization(torch.ones(3))


def test_a_loop_without_the_term_of_its_method_is_warned_once(caplog):
    for name, said in (("prunetrain", 1), ("dense", 0)):
        own = hooks(METHODS[name]())
        own.attach(sgd(*own.model.parameters()))
        caplog.clear()
        for _ in range(2):
            F.cross_entropy(own.model(IMAGES), LABELS).backward()
            own.optimizer_step()
            own.end_epoch()
        assert caplog.text.count("hooks.regularization was not called in epoch 1: PruneTrain has a term") == said


# Optimizers


def test_a_parameter_that_can_be_cut_and_is_in_no_optimizer_is_named():
    own = hooks(Shrinks(), small_net())
    *most, bias = own.model.parameters()
    own.model[4].bias.requires_grad_(False)  # it is frozen, and needs none
    trained = [one for one in most if one.requires_grad]
    with pytest.raises(UsageError, match=r"Shrinks may cut parameter '0\.weight', which no attached optimizer has"):
        own.attach(sgd(*trained[1:]), sgd(bias))
    own.attach(sgd(*trained[1:]), sgd(trained[0]))  # the bias has one element for each class
    hooks(Nothing()).attach(sgd(nn.Parameter(torch.ones(1))))  # a method that cuts nothing


def test_a_second_call_may_not_leave_out_parameters_of_the_first():
    own = hooks(METHODS["masked"]())
    first, *others = own.model.parameters()
    own.attach(sgd(first))
    with pytest.raises(
        UsageError, match=r"attach was called again, without the optimizer that has parameter '0\.weight'"
    ):
        own.attach(sgd(*others))
    own.attach(sgd(first, *others))  # another optimizer of all parameters, as after a restart


def test_what_is_no_optimizer_is_refused():
    own = hooks(Nothing())
    for wrong in ([sgd(*own.model.parameters())], own.model.parameters()):
        with pytest.raises(UsageError, match=r"as in hooks\.attach\(first, second\); not a"):
            own.attach(wrong)
    with pytest.raises(UsageError, match="attach needs at least one optimizer"):
        own.attach()
    with pytest.raises(UsageError, match="no optimizer is attached"):
        own.optimizer_step()


def test_states_of_several_optimizers_are_cut_and_read_as_one():
    loop = Loop(METHODS["prunetrain-proximal"](), RECIPE, net(), optimizers=3)
    loop.epoch(0)
    acts = loop.hooks.ctx.optimizer
    assert len(acts.param_groups) == 3
    assert len(acts.state) == len(list(acts.state)) == len(list(loop.model.parameters()))
    for one in loop.model.parameters():
        assert acts.state[one]["momentum_buffer"].shape == one.shape
        assert acts.state.get(one) is acts.state[one]
    assert acts.state.get(nn.Parameter(torch.ones(1))) is None
    assert loop.model[2].weight.shape != net()[2].weight.shape


# Averages


def test_an_average_that_was_made_before_the_method_follows_its_masks():
    model = net()
    before = AveragedModel(model)
    own = hooks(METHODS["masked"](), model)
    own.attach(sgd(*model.parameters()), averages=[before])
    for _ in range(5):
        F.cross_entropy(model(IMAGES), LABELS).backward()
        own.optimizer_step()
        before.update_parameters(model)
    assert (before.module[2].weight[own.method.masks["2"].logical_not()] != 0).any()
    own.end_epoch()
    own.finish()
    for name, mask in own.method.masks.items():
        assert not before.module.get_submodule(name).weight[~mask].any()
    assert type(restore(before).module[2]) is nn.Conv2d


def test_what_is_no_copy_of_the_model_is_refused():
    own = hooks(Nothing())
    optimizer = sgd(*own.model.parameters())
    wide = net()
    wide[8] = nn.Linear(32, 9)
    for wrong, said in (
        (nn.Linear(1, 1), r"this Linear has no '0\.bias'"),
        (own.model, "and not the model"),
        (wide, r"its '8\.weight' is \(9, \d+\), and that of the model \(4, \d+\)"),
    ):
        with pytest.raises(UsageError, match=said):
            own.attach(optimizer, averages=[wrong])
    average = AveragedModel(own.model)
    for _ in range(2):
        own.attach(optimizer, averages=[average])
    assert own.averages == [average]


def test_a_refused_optimizer_is_not_attached_and_no_parameter_is_in_two():
    own = hooks(METHODS["prunetrain"]())
    every = [*own.model.parameters()]
    own.attach(sgd(*every))
    before = own.ctx.optimizer
    with pytest.raises(ValueError, match="update=subgradient"):
        own.attach(torch.optim.AdamW(every))
    with pytest.raises(UsageError, match=r"a parameter of shape \(.*\) is in two of the attached optimizers, SGD and"):
        own.attach(sgd(*every), torch.optim.AdamW(every[:1]))
    prune.identity(own.model[2], "weight")
    with pytest.raises(UsageError, match="layer '2' cannot be planned: its weight is not a parameter"):
        own.attach(sgd(*every))
    assert own.ctx.optimizer is before


# Wrapped models, and other types


def test_a_model_may_have_another_type_than_the_default():
    torch.set_default_dtype(torch.float64)
    try:
        for method in (METHODS["prunetrain"](), SDGP(backend="skip")):
            hooks(method, net().float())
    finally:
        torch.set_default_dtype(torch.float32)
    own = hooks(METHODS["prunetrain"](), net().double())
    assert own.ctx.memory_estimate(ReconfigPlan()) > 0
    own = hooks(ClickTrain(backend="skipping"), net().double())
    own.method.on_epoch_end(own.ctx)
    assert set(own.method.record(own.ctx)["backends"].values()) == {"masked"}


def test_wrapped_and_compiled_models_are_refused():
    class FullyShardedDataParallel(nn.Sequential):
        """Named as torch's, which needs a process group."""

    for wrapped, said in (
        (nn.DataParallel(net()), "DataParallel is not supported.*use DistributedDataParallel"),
        (nn.Sequential(FullyShardedDataParallel(net())), r"sharded models \(FSDP\) are not supported"),
        (torch.compile(net(), backend="eager"), "compiled; apply the method to the bare model first"),
        (nn.Sequential(torch.jit.script(net())), "'0' is scripted .*; apply the method to the model in Python"),
        (nn.Bilinear(4, 4, 2), "missing 1 .*'input2'; its forward has to take one tensor, .*: check input_shape, wrap"),
    ):
        with pytest.raises(UsageError, match=said):
            hooks(Nothing(), wrapped)


# Files


def start(name, compiled=False):
    return Loop(METHODS[name](), RECIPE, net(), optimizers=2, ema=0.8, compiled=compiled)


def steps(loop, first, last):
    """Run steps of the training, from `first` to before `last`."""
    batches = [list(SmallBatches(64, seed=1).epoch(number, 16)) for number in range(4)]
    for number in range(first, last):
        loop.step(*batches[number // 4][number % 4])
        if number % 4 == 3 and loop.hooks.end_epoch() is not None:
            loop.wrap()


@pytest.mark.parametrize(
    ("name", "stop"),
    [("sdgp", 9), ("prunetrain", 2), ("prunetrain-proximal", 9), ("clicktrain", 12), ("masked", 2)],
)
def test_a_loop_goes_on_with_equal_bits_from_the_middle_of_an_epoch(name, stop, tmp_path):
    def everything(loop):
        return [
            *loop.model.state_dict().values(),
            *loop.average.state_dict().values(),
            torch.rand(1),
            torch.tensor(random.random()),
        ]

    torch.manual_seed(5)
    random.seed(5)
    loop = start(name)
    steps(loop, 0, stop)
    torch.rand(stop)
    loop.hooks.save(tmp_path / "state.pt", scheduler=loop.schedules[0], epoch=stop // 4, note={"best": [0.5, "x"]})
    steps(loop, stop, 16)
    wanted = everything(loop)
    torch.manual_seed(6)
    random.seed(6)
    again = start(name)
    found = again.hooks.load(tmp_path / "state.pt", scheduler=again.schedules[0])
    again.wrap()
    assert found == {"epoch": stop // 4, "note": {"best": [0.5, "x"]}}
    assert again.hooks.ctx.batch_index == stop % 4
    steps(again, stop, 16)
    for one, other in zip(everything(again), wanted, strict=True):
        assert torch.equal(one, other)


def test_files_that_do_not_fit_are_refused_by_name(tmp_path):
    path = tmp_path / "state.pt"
    loop = start("prunetrain")
    steps(loop, 0, 4)
    assert loop.hooks.reconfigurations
    loop.hooks.save(path, epoch=1)
    for other, said in (
        (lambda: loop, "the model was cut already; build it again"),
        (lambda: start("dense"), "was saved with method PruneTrain, here it is Dense"),
        (lambda: Loop(METHODS["prunetrain"](), RECIPE, net(), ema=0.8), "saved with 2 optimizers, here there are 1"),
        (lambda: Loop(METHODS["prunetrain"](), RECIPE, net(), optimizers=2), "with 1 averages, here there are 0"),
    ):
        with pytest.raises(UsageError, match=said):
            other().hooks.load(path)
    new = start("prunetrain")
    with pytest.raises(UsageError, match="has no 'schedule'; known: epoch"):
        new.hooks.load(path, schedule=new.schedules[0])
    with pytest.raises(UsageError, match="epoch is a int: leave it out"):
        new.hooks.load(path, epoch=1)
    with pytest.raises(UsageError, match="loop cannot be saved: a Loop is not plain data"):
        loop.hooks.save(path, loop=loop)
    torch.save({"model": {}}, tmp_path / "other.pt")
    with pytest.raises(UsageError, match=r"other.pt: was not written by hooks\.save"):
        new.hooks.load(tmp_path / "other.pt")
    wide = net()
    wide[8] = nn.Linear(32, 9)
    other = Loop(METHODS["prunetrain"](), RECIPE, wide, optimizers=2, ema=0.8)
    with pytest.raises(UsageError, match=r"of another model: its '8.weight' is \(4, \d+\), here \(9, \d+\)"):
        other.hooks.load(path)


class Touches:
    """Creates a file when it is unpickled, if its code runs."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_damaged_file_is_refused_in_one_line_without_its_code_and_before_a_change(tmp_path):
    path, loop = tmp_path / "state.pt", start("prunetrain")
    steps(loop, 0, 4)
    loop.hooks.save(path, epoch=1)
    content, state = path.read_bytes(), torch.load(path)
    code, new = Touches(tmp_path / "ran"), start("prunetrain")
    before = [io.BytesIO(), io.BytesIO()]
    torch.save(own_loop._state(new.hooks, {}), before[0])
    cases = [content[:0], content[: len(content) // 2], content[:-1], np.random.default_rng(0).bytes(999)]
    cases += [pickle.dumps(code), state | {"model": code}, [state], torch.ones(3), {"model": state["model"]}]
    parts = ["method", "settings", "counts", "reconfigurations", "model", "optimizers", "averages", "hooks", "others"]
    cases += [{key: value for key, value in state.items() if key != part} for part in (*parts, "random")]
    for content in cases:
        path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
        with pytest.raises(UsageError, match=f"^{re.escape(str(path))}: [^\n]+$"):
            new.hooks.load(path)
    torch.save(own_loop._state(new.hooks, {}), before[1])
    assert before[0].getvalue() == before[1].getvalue()
    assert not (tmp_path / "ran").exists()
    torch.save(state | {"hooks": {}}, path)  # what only the method can read is seen too late to change nothing
    with pytest.raises(UsageError, match=r"\(KeyError: 'method'\); build the model again before another load$"):
        new.hooks.load(path)


def test_numbers_of_numpy_are_saved_as_numbers(tmp_path):
    path = tmp_path / "state.pt"
    sizes = {"epochs": np.int64(4), "batch_size": np.int64(16), "input_shape": tuple(np.array(SHAPE))}
    own = hooks(Nothing(), num_classes=np.int64(CLASSES), **sizes)
    optimizer = torch.optim.SGD(own.model.parameters(), lr=np.float64(0.1))
    own.attach(optimizer)
    own.save(path, best=np.float32(0.5))
    own.save_model(tmp_path / "model.pt")
    again = hooks(Nothing())
    again.attach(torch.optim.SGD(again.model.parameters(), lr=0.2))
    assert again.load(path) == {"best": 0.5}
    assert again.ctx.optimizer.param_groups[0]["lr"] == 0.1
    load_model(tmp_path / "model.pt", net())
    # What cannot be read again is refused, and the file stays as it was; parts of killed saves go.
    content = path.read_bytes()
    optimizer.param_groups[0]["note"] = object()
    with pytest.raises(UsageError, match=r"optimizers\[0\]\['param_groups'\]\[0\]\['note'\] cannot be saved: a object"):
        own.save(path)
    assert path.read_bytes() == content
    left = tmp_path / f".state.pt.{'0' * 16}.part"
    left.write_bytes(b"x")
    del optimizer.param_groups[0]["note"]
    own.save(path)
    assert not [*tmp_path.glob(".*.part")]


@pytest.mark.parametrize(("name", "value"), [("seed", 1), ("epochs", 5), ("batch_size", 8), ("micro_batches", 2)])
def test_a_training_does_not_go_on_with_other_settings(tmp_path, name, value):
    own, other = hooks(Nothing()), hooks(Nothing(), **{name: value})
    for one in (own, other):
        one.attach(sgd(*one.model.parameters()))
    own.save(tmp_path / "state.pt")
    with pytest.raises(UsageError, match=f"was saved with {name} .*, here it is {value}"):
        other.load(tmp_path / "state.pt")


def test_a_model_of_other_inputs_is_saved_and_what_cannot_be_loaded_is_refused(tmp_path):
    class Counts(nn.Flatten):
        def get_extra_state(self):
            return {"seen": 1}

        def set_extra_state(self, state):
            pass

    model = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 4))
    own = hooks(Nothing(), model, input_shape=(20,))
    own.attach(sgd(*model.parameters()))
    own.save_model(tmp_path / "model.pt")
    with pytest.raises(UsageError, match="got an average that does not follow the model"):
        own.save_model(tmp_path / "model.pt", AveragedModel(model))
    load_model(tmp_path / "model.pt", nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 4)))
    for path in ("state.pt", "other.pt"):
        own = hooks(Nothing(), nn.Sequential(Counts(), nn.Linear(192, 4)))
        own.attach(sgd(*own.model.parameters()))
        if path == "state.pt":
            own.save(tmp_path / path)
        else:
            own.load(tmp_path / "state.pt")
    with pytest.raises(UsageError, match=r"its state '0\._extra_state' is not a tensor"):
        own.save_model(tmp_path / "model.pt")


@pytest.mark.parametrize("name", ["prunetrain", "clicktrain"])
def test_a_model_is_used_elsewhere_without_its_training(name, tmp_path):
    loop = start(name)
    steps(loop, 0, 14)
    for average in (None, loop.average):
        loop.hooks.save_model(tmp_path / "model.pt", average)
        alone = load_model(tmp_path / "model.pt", net())
        own = loop.model if average is None else loop.average.module
        assert torch.equal(alone(IMAGES), own.eval()(IMAGES))
        assert {type(layer).__module__.partition(".")[0] for layer in alone.modules()} == {"torch"}
    with pytest.raises(UsageError, match=r"build it again and give it: load_model\(path, model\)"):
        load_model(tmp_path / "model.pt")
    with pytest.raises(UsageError, match="its tensors do not fit the given model"):
        load_model(tmp_path / "model.pt", nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.LazyLinear(4)))


@pytest.mark.parametrize("name", ["prunetrain", "masked"])
def test_a_cut_model_is_trained_again_only_after_it_was_restored(name, tmp_path):
    first = start(name)
    steps(first, 0, 8)
    first.hooks.finish()
    first.hooks.save_model(tmp_path / "model.pt")
    with pytest.raises(
        UsageError, match=r"layer '0' of the model was planned by .*: call finish.* then suite\.ops\.restore\(model\)$"
    ):
        hooks(Nothing(), first.model)
    models = [restore(first.model), load_model(tmp_path / "model.pt", net()).train()]
    again = [Loop(METHODS[name](), RECIPE, model, optimizers=2, ema=0.8) for model in models]
    for loop in again:
        steps(loop, 0, 8)
    for one, other in zip(*(loop.model.parameters() for loop in again), strict=True):
        assert torch.equal(one, other)
