"""Layers that a method leaves out by name (`Method.ignore`): it plans none of them, and their channels are frozen."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from suite.engine.network.channels.surgery import named_tensors
from suite.errors import UsageError
from suite.index_spaces import IndexSpaces

NAMED = 3  # most names that an error suggests


def ignored_modules(model: nn.Module, patterns: Sequence[str]) -> dict[str, str]:
    """Return the modules that patterns leave out, each with the reason.

    A pattern (`layer1.*`, `*.conv1`, `fc`; see `fnmatch.fnmatchcase`) leaves out each module that it matches, with all
    modules inside. It may match any name of a module that has several; the result has the first one.

    Args:
        model: The bare model.
        patterns: The patterns.

    Raises:
        UsageError: A pattern matches no module with parameters or buffers. The message has the nearest names, or says
            that the pattern matches a parameter or buffer.
    """
    first = {module: name for name, module in model.named_modules() if name and _holds_tensors(module)}
    modules = list(first.values())
    names = {name: first[module] for name, module in model.named_modules(remove_duplicate=False) if module in first}
    found: dict[str, str] = {}
    for pattern in patterns:
        outer = [name for name in names if fnmatchcase(name, pattern)]
        if not outer:
            if tensor := next((name for name in named_tensors(model) if fnmatchcase(name, pattern)), ""):
                owner = tensor.rpartition(".")[0]
                raise UsageError(
                    f"ignore={pattern} names a parameter or buffer, '{tensor}', and only modules can be named"
                    + (f", such as its own, {owner}" if owner else "; this one belongs to the whole model")
                )
            close = difflib.get_close_matches(pattern, names, NAMED, cutoff=0.0)
            raise UsageError(f"ignore={pattern} names no layer; the nearest names are {', '.join(close)}")
        for name, first_name in names.items():
            if any(name == one or name.startswith(f"{one}.") for one in outer):
                found.setdefault(first_name, f"ignore={pattern} leaves '{first_name}' out")
    # A weight that two layers share belongs to both.
    tensors_of = {
        name: {id(one) for one in model.get_submodule(name)._parameters.values()} - {id(None)} for name in modules
    }
    for name in modules:
        if name not in found and (sharing := next((one for one in found if tensors_of[one] & tensors_of[name]), "")):
            found[name] = f"{found[sharing]}, with which '{name}' shares a parameter"
    return found


def leave_out(spaces: IndexSpaces, ignored: Mapping[str, str]) -> None:
    """Freeze the channels of ignored modules, and fix the residual branches that have an ignored module.

    A space that was frozen before keeps its reason.

    Args:
        spaces: Index spaces of the model, which are changed.
        ignored: The modules, as `ignored_modules` returns them.
    """
    frozen = {}
    for name, space in spaces.items():
        if not space.frozen and (reason := _first(ignored, (part.module for part in space.slices))):
            space.frozen_because = frozen[name] = reason
    for name, branch in list(spaces.removable_branches.items()):
        inside = [module for module in ignored if module.startswith(f"{name}.")]
        if reason := _first(ignored, inside) or _first(frozen, branch.spaces):
            spaces.fix_branch(name, reason)


def _first(reasons: Mapping[str, str], names: Iterable[str]) -> str:
    return next((reasons[name] for name in names if name in reasons), "")


def _holds_tensors(module: nn.Module) -> bool:
    return any(True for _ in (*module.parameters(), *module.buffers()))
