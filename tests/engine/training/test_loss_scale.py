"""Training in float16 with a loss scale: on the CPU here, where the command line does not offer it."""

import dataclasses

import pytest
import torch
from small_methods import Decays, HashedChannels, Mixup, Nothing, Shrinks, SkipsOdd
from small_training import RECIPE, assert_it_resumes, small_net, small_trainer
from torch import nn

from suite.engine.training.records import Diverged
from suite.method import Method, OpPlan


def half(method, recipe=RECIPE, growth_interval=6, **options):
    trainer = small_trainer(method, recipe, dtype=torch.float16, **options)
    trainer.scaler.set_growth_interval(
        growth_interval
    )  # so that a scale grows, and overflows, in the few steps of a test
    return trainer


@pytest.mark.parametrize("method", [Nothing, Mixup, SkipsOdd, HashedChannels, Decays, Shrinks])
def test_float16_trains_and_resumes_bit_exactly_with_its_scale(method):
    whole, records, (resumed,) = assert_it_resumes(
        lambda **callbacks: half(method(), growth_interval=4, **callbacks), after=[1]
    )
    assert records[-1]["train_loss"] < records[0]["train_loss"]
    assert len({record["loss_scale"] for record in records}) > 1
    assert resumed.scaler.state_dict() == whole.scaler.state_dict()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types_have_no_scale(dtype):
    trainer = small_trainer(Nothing(), dtype=dtype)
    assert trainer.scaler is None
    assert trainer.state_dict()["scaler"] is None
    assert "loss_scale" not in trainer.train_epoch()


class Overflows(Method):
    """Its gradients of one layer overflow in the second step."""

    def plan(self, name, layer):
        return OpPlan(grad_wgrad=self.overflow) if name == "8" else None

    def overflow(self, grad, site):
        return grad * 1e30 if site.step == 1 else grad


def test_overflowing_gradients_skip_the_step_and_halve_the_scale():
    calls = []

    class Explodes(Overflows):
        def before_optimizer_step(self, ctx):
            calls.append((ctx.step, ctx.model[8].weight.clone()))

        def after_optimizer_step(self, ctx):
            calls.append((ctx.step, None))

    records = []
    trainer = half(Explodes(), on_epoch=records.append)
    trainer.fit()
    assert 1 not in {step for step, _ in calls}
    assert {0, 2} <= {step for step, _ in calls}
    assert [record["skipped_steps"] for record in records][:2] == [1, 0]
    # Halved by step 1; grown after the six steps from 2 to 7.
    assert [record["loss_scale"] for record in records][:2] == [2.0**15, 2.0**16]
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_transforms_see_the_scaled_gradient_and_the_hooks_the_true_one():
    seen = {}

    class Notes(Method):
        def plan(self, name, layer):
            return OpPlan(grad_shared=self.note) if name == "8" else None

        def note(self, grad, site):
            seen.setdefault(site.step, []).append(grad.float().abs().sum().item())
            return grad

        def before_optimizer_step(self, ctx):
            seen.setdefault(ctx.step, []).append(ctx.model[8].bias.grad.abs().sum().item())

    small_trainer(Notes()).train_epoch()
    true, seen = seen[0], {}
    half(Notes()).train_epoch()
    assert seen[0][0] == pytest.approx(2**16 * true[0], rel=1e-2)
    assert seen[0][1] == pytest.approx(true[1], rel=1e-2)


def test_regularization_is_part_of_the_scaled_loss():
    found = {}

    class Notes(Decays):
        def before_optimizer_step(self, ctx):
            found.setdefault(self.kind, ctx.model[0].weight.grad.clone())
            found.setdefault(self.kind + " term", 2 * self.coefficient * ctx.model[0].weight.detach().clone())

    class Without(Notes):
        def regularization(self, model, ctx):
            super().regularization(model, ctx)

    for kind, method in (("with", Notes), ("without", Without)):
        instance = method()
        instance.kind = kind
        half(instance).train_epoch()
    difference = found["with"] - found["without"]
    assert found["with term"].abs().max() > 0.05
    torch.testing.assert_close(difference, found["with term"], rtol=1e-3, atol=1e-4)


def test_the_mean_of_the_regulariser_is_over_the_steps_that_were_taken():
    class Constant(Overflows):
        def regularization(self, model, ctx):
            return 0 * model[0].weight.sum() + 0.75

    records = []
    half(Constant(), dataclasses.replace(RECIPE, epochs=2), on_epoch=records.append).fit()
    assert [record["skipped_steps"] for record in records][:2] == [1, 0]
    assert [record["regularization"] for record in records][:2] == [0.75, 0.75]


@pytest.mark.parametrize("make", [half, small_trainer])
def test_clipping_bounds_the_norm_of_true_gradients(make):
    norms = []

    class Watches(Method):
        def before_optimizer_step(self, ctx):
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in ctx.model.parameters()]).item())

    make(Watches(), dataclasses.replace(RECIPE, clip_norm=0.01)).train_epoch()
    assert max(norms) == pytest.approx(0.01, rel=1e-3)
    assert min(norms) == pytest.approx(0.01, rel=1e-3)


class Amplifies(nn.Module):
    """Logits that are large enough for the scaled gradient to overflow at high scales."""

    def forward(self, logits):
        return logits * 2e3


def test_an_epoch_without_a_step_is_no_divergence_while_the_scale_falls():
    def loud():
        return nn.Sequential(*small_net(), Amplifies())

    records = []
    still = dataclasses.replace(RECIPE, epochs=5, learning_rate=1e-6)
    trainer = half(Nothing(), still, model=loud(), on_epoch=records.append)
    trainer.fit()
    assert records[0]["skipped_steps"] == records[0]["steps"]
    assert records[0]["loss_scale"] == 2.0**12
    assert records[-1]["skipped_steps"] < records[-1]["steps"]


def test_an_epoch_without_a_step_is_divergence_when_the_scale_has_fallen_below_one():
    class Never(Method):
        def regularization(self, model, ctx):
            return (model[0].weight * 0).sum().sqrt()  # finite, and its gradient is not

    records = []
    with pytest.raises(Diverged, match="no step of epoch 5 had finite gradients"):
        half(Never(), dataclasses.replace(RECIPE, epochs=9), on_epoch=records.append).fit()
    assert [record["loss_scale"] for record in records] == [2.0**12, 2.0**8, 2.0**4, 1.0]
