"""A trial cut: remove half of every index space from a copy, and compare its outputs with those of a masked copy.

Tracing finds only what is in a model's graph. Other Python code, such as `sum(p.numel() for p in self.parameters())`,
can also depend on the number of channels. Only a cut model shows this.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from suite.engine.network.channels.surgery import apply_plan, named_tensors
from suite.engine.network.forward_pass import copied, first_parameter, probing
from suite.index_spaces import IndexSpaces
from suite.method import Method, ReconfigPlan

log = logging.getLogger(__name__)

BATCH = 2
TOLERANCE = 1e-3
"""Largest difference relative to the largest output. Rounding gives about 1e-6, and a wrong size a factor of 2."""
ROUNDING = 1e-10
"""Largest rounding error, in float64, of an output that is zero."""
CHANGES_OUTPUTS = "cutting it changes what the model computes, or ends its forward"

NO_OUTPUTS = "its outputs have no tensor, so that no cut can be compared"
NOT_FINITE = "its outputs for random images are not finite, so that no cut can be compared"
MOST_WARNINGS = 5
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_DROPOUTS = {
    "dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout", "feature_dropout_",
    "feature_alpha_dropout", "feature_alpha_dropout_",
}  # fmt: skip


def freeze_what_fails(model: nn.Module, spaces: IndexSpaces, input_shape: tuple[int, int, int]) -> None:
    """Freeze the index spaces of which a cut copy does not give the outputs of a masked copy.

    The copies get random images in evaluation and in training mode, with running statistics and without dropout. Batch
    normalisations of the user's own classes also run in training mode. Infinities and NaN have to be in the same
    places. The copies draw parameters of normalisation and all-zero parameters at random. The model stays unchanged. If
    outputs differ in float32, float64 decides, because very deep networks can amplify rounding errors.

    Args:
        model: The bare model.
        spaces: Its index spaces; the wrong ones are frozen.
        input_shape: (C, H, W) of one image.
    """
    free = [name for name, space in spaces.items() if not space.frozen and space.size > 1]
    if not free:
        return
    # cuDNN may round products to TF32, with errors as large as the tolerance.
    with probing(model), torch.no_grad(), torch.backends.cudnn.flags(enabled=False):
        torch.manual_seed(0)  # every process and a resumed training must get the same result
        drawn = _drawn(model)
        first = first_parameter(drawn)
        images = torch.randn(BATCH, *input_shape, device=first.device, dtype=first.dtype)
        try:
            _set_statistics(drawn, images)
            outputs = _outputs(drawn, images)
        except Exception as error:  # a forward may raise anything; the reason is kept
            text = str(error).partition("\n")[0]
            _freeze(spaces, free, f"its forward fails for random images: {type(error).__name__}: {text}")
            return
        if not any(output.isfinite().any() for output in outputs):
            _freeze(spaces, free, NOT_FINITE if any(output.numel() for output in outputs) else NO_OUTPUTS)
            return
        if _agrees(drawn, spaces, free, images):
            return
        drawn, images = _more_exact(drawn, images)
        if _agrees(drawn, spaces, free, images):
            return
        wrong = [name for name in free if not _agrees(drawn, spaces, [name], images)]
        left = [name for name in free if name not in wrong]
        if not wrong or not _agrees(drawn, spaces, left, images):
            wrong = free
    _freeze(spaces, wrong, CHANGES_OUTPUTS)


def _freeze(spaces: IndexSpaces, names: Collection[str], reason: str) -> None:
    """Freeze index spaces, and the branches that have one of them."""
    for name in names:
        spaces[name].frozen_because = reason
    for name, branch in list(spaces.removable_branches.items()):
        if set(branch.spaces) & set(names):
            spaces.fix_branch(name, reason)


def warn_of_frozen_channels(spaces: IndexSpaces, method: Method, wanted: Collection[str] = ()) -> None:
    """Warn of index spaces whose channels cannot be removed, other than the model's input and outputs.

    Each space gets a line, or all get one line if there are more than `MOST_WARNINGS`, as in a transformer. A line
    begins with the name of the method.

    Args:
        spaces: Index spaces of the model.
        method: The method.
        wanted: Reasons of spaces that are frozen because the user wants it.
    """
    name = method.registered_name or type(method).__name__
    ends = {spaces.model_input, *spaces.model_outputs}
    kept = [space for space in spaces.values() if space.frozen and space.name not in ends]
    frozen = [space for space in kept if space.frozen_because not in wanted]
    if len(frozen) > MOST_WARNINGS:
        layers = {layer for space in spaces.values() if not space.frozen for layer in space.producers}
        reasons = [space.frozen_because for space in frozen]
        several = ", some for several reasons" if any("; " in reason for reason in reasons) else ""
        log.warning(
            "%s: channels can be removed from the outputs of %d layers; %d other sets of channels, each shared by the "
            "layers that write and read them, have to stay%s: %s",
            name, len(layers), len(frozen), several, "; ".join(counted_reasons(reasons)),
        )  # fmt: skip
        return
    for space in frozen:
        log.warning("%s: no channel of '%s' can be removed: %s", name, space.name, space.frozen_because)


def counted_reasons(reasons: Iterable[str]) -> list[str]:
    """Return the most frequent kinds of reasons with their counts. Reasons of one kind differ in quoted names only."""
    kinds: dict[str, list[str]] = {}
    for reason in (reason_text for several in reasons for reason_text in several.split("; ")):
        kinds.setdefault(re.sub(r"'[^']*'", "''", reason), []).append(reason)
    first = sorted(kinds.values(), key=lambda alike: -len(alike))[:MOST_WARNINGS]
    named = [f"{alike[0]} ({len(alike)} times, {_names(alike)})" if len(alike) > 1 else alike[0] for alike in first]
    more = len(kinds) - len(first)
    return [*named, f"and {more} more {'reason' if more == 1 else 'reasons'}"] if more else named


def _names(alike: Iterable[str]) -> str:
    return "with this name" if len(set(alike)) == 1 else "with other names too"


def _drawn(model: nn.Module) -> nn.Module:
    """Return a copy without parameters of less than 32 bits, and without all-zero ones, which would hide layers."""
    drawn = copied(model)
    if any(parameter.element_size() < 4 for parameter in drawn.parameters()):
        drawn = drawn.float()
    for module in drawn.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, _NORMS):
                parameter.normal_(float(name == "weight"), 0.2)
            elif not parameter.any():
                parameter.normal_(0.0, 0.1)
    return drawn


def _set_statistics(model: nn.Module, images: Tensor) -> None:
    """Set the running statistics of every normalisation to those of these images."""
    for module in model.modules():
        if isinstance(module, _NORMS):
            module.momentum = 1.0
    with _WithoutDropout():
        model.train()(images)


def _more_exact(model: nn.Module, images: Tensor) -> tuple[nn.Module, Tensor]:
    """Return model and images in float64, or as they are if the forward is possible in float32 only."""
    try:
        exact = copied(model).double()
        _outputs(exact, images.double())
    except Exception as error:  # a forward may raise anything
        log.debug("cuts are compared in float32, because the forward fails in float64: %s", error)
        return model, images
    return exact, images.double()


def _agrees(model: nn.Module, spaces: IndexSpaces, names: Iterable[str], images: Tensor) -> bool:
    """Return whether a copy without half of these spaces' channels has the outputs of a copy with them masked."""
    kept = {}
    for name in names:
        order = torch.randperm(spaces[name].size)[: spaces[name].size // 2].tolist()
        kept[name] = [spaces[name].original[index] for index in sorted(order)]
    masked = copied(model)
    _mask(masked, spaces, kept)
    cut = copied(masked)
    apply_plan(cut, ReconfigPlan(kept=kept), copy.deepcopy(spaces), None)
    try:
        of_masked = _outputs(masked, images)
        of_cut = _outputs(cut, images)
    except Exception as error:  # a forward may raise anything
        log.debug("the forward fails with a cut of %s: %s", ", ".join(kept), error)
        return False
    if len(of_cut) != len(of_masked) or not any(output.isfinite().any() for output in of_masked):
        return False
    return all(map(_same_outputs, of_masked, of_cut))


def _same_outputs(wanted: Tensor, found: Tensor) -> bool:
    """Return whether two outputs in float64 are the same up to rounding, with infinities and NaN in the same places."""
    if wanted.shape != found.shape:
        return False
    differs = ~((wanted == found) | (wanted.isnan() & found.isnan()))
    if not differs.any():
        return True
    # The scale is that of the entries that differ: a constant of the forward, such as -1e9 for a masked class, is none.
    wanted, found = wanted[differs], found[differs]
    largest_error = (wanted - found).abs().max()  # infinite or NaN if one of the two is
    return bool(largest_error <= TOLERANCE * wanted.abs().max() + ROUNDING) and bool(largest_error.isfinite())


def _mask(model: nn.Module, spaces: IndexSpaces, kept: dict[str, list[int]]) -> None:
    """Set to zero all weights of convolution and linear layers that read or produce the removed channels."""
    tensors = named_tensors(model)
    for name, channels in kept.items():
        removed = [index for index, number in enumerate(spaces[name].original) if number not in set(channels)]
        for part in spaces[name].slices:
            if isinstance(model.get_submodule(part.module), (nn.Conv2d, nn.Linear)):
                entries = part.entries[removed].flatten().to(tensors[part.tensor].device)
                tensors[part.tensor].index_fill_(part.axis, entries, 0.0)


def _outputs(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Return all output tensors of the model, as real numbers in float64, in evaluation and in training mode.

    If normalisations have a forward of their own, the model runs a third time with only these in training mode: their
    statistics of the images may be of several channels.
    """
    outputs: list[Tensor] = []
    norms = [module for module in model.modules() if isinstance(module, _NORMS)]
    with_forward = [norm for norm in norms if all(type(norm).forward is not kind.forward for kind in _NORMS)]
    for training, own_training in ((False, False), (True, False), (False, True)):
        if own_training and not with_forward:
            continue
        model.train(training)
        for norm in norms:
            norm.eval()
        for norm in with_forward:
            norm.training = own_training  # its children, such as an activation, stay as they are
        torch.manual_seed(1)  # random choices, such as stochastic depth, are the same for both models
        with _WithoutDropout():
            output = model(images)
        outputs += [_real_numbers(tensor) for tensor in tensors_of(output)]
    return outputs


def _real_numbers(tensor: Tensor) -> Tensor:
    """Return a tensor as a dense one in float64, in which a complex number is two numbers."""
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors of a model's output: of a tensor, a list, a mapping, or an object with attributes."""
    tensors: list[Tensor] = []
    left, seen = [output], set()
    while left:
        part = left.pop()
        if isinstance(part, Tensor):
            tensors.append(part)
        elif id(part) not in seen and not isinstance(part, (nn.Module, type)):
            seen.add(id(part))
            if isinstance(part, Mapping):
                left += part.values()
            elif isinstance(part, (tuple, list)):
                left += part
            else:
                left += getattr(part, "__dict__", {}).values()
                left += [getattr(part, slot) for slot in _slots(type(part)) if hasattr(part, slot)]
    return tensors


def _slots(kind: type) -> list[str]:
    named = [vars(base).get("__slots__", ()) for base in kind.__mro__ if base.__module__ != "builtins"]
    return [slot for slots in named for slot in ((slots,) if isinstance(slots, str) else slots)]


class _WithoutDropout(TorchFunctionMode):
    """Makes dropout return its input, because its random draws would depend on the number of channels."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in _DROPOUTS or getattr(func, "__name__", "") in ("dropout2d", "dropout3d"):
            return args[0] if args else (kwargs or {})["input"]
        return func(*args, **(kwargs or {}))
