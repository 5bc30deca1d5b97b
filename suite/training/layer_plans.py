"""Ask a method for the plan of every layer."""

from __future__ import annotations

from collections.abc import Mapping

from suite.errors import UsageError
from suite.method import EMPTY_PLAN, Context, Method, OpPlan
from suite.network.layers import keep_nested_tensors_off


def plan_layers(method: Method, ctx: Context, readers: Mapping[str, frozenset[str]]) -> None:
    """Give every layer of `ctx.layers` the plan that the method returns for it.

    Args:
        method: The method.
        ctx: Its context.
        readers: For each layer whose weight is read outside its own forward, the modules that read it.

    Raises:
        UsageError: if `plan` returns something else than an `OpPlan`, or plans a layer whose weight the model also
            reads where no plan is followed.
    """
    for name, layer in ctx.layers.items():
        plan = method.plan(name, layer)
        if not isinstance(plan, OpPlan | None):
            raise UsageError(
                f"{type(method).__name__}.plan returned a {type(plan).__name__} for '{name}', not an OpPlan"
            )
        layer.op_plan = plan or EMPTY_PLAN
        if not layer.op_plan.empty:
            _refuse_other_readers(method, name, layer.op_plan, readers.get(name, frozenset()), ctx)
    keep_nested_tensors_off(ctx.model)


def _refuse_other_readers(method: Method, name: str, plan: OpPlan, readers: frozenset[str], ctx: Context) -> None:
    """Refuse a plan for a layer whose weight is also read outside the layer."""
    if plan.weight_forward is None and plan.backend is None:
        # Two layers that share a weight can each follow a plan for their gradients.
        readers -= ctx.layers.keys()
    if readers:
        whose = " and ".join(f"'{reader}'" if reader else "the model's own forward" for reader in sorted(readers))
        raise UsageError(
            f"{type(method).__name__} plans layer '{name}', whose weight is also read by {whose}, which does not "
            "follow the plan; call the layer itself there, give it its own weight, or return no plan for it"
        )
