"""Where channels are in a reshaped tensor, and which functions only move or remove axes."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from suite.network.channels.numbers import Label


def reshaped(
    given: Sequence[int], label: Label, axis: int, shape: Sequence[int], adapting: Collection[int]
) -> tuple[Label, int] | None:
    """Return the channels of a reshaped tensor, or `None` if the view would be wrong with fewer channels.

    Args:
        given: Shape before; axis 0 is that of the images.
        label: Channel of each entry of `axis`, (given[axis],).
        axis: Axis of the channels before.
        shape: Shape behind.
        adapting: Axes of `shape` whose size the code does not state, or computes from the number of channels.

    Returns:
        (grid, axis): the axis of the channels behind, and the channels of each of its entries, (entries, several). The
        view stays right only if all channels of a row are removed together.
    """
    # Find the smallest runs of axes before and behind that have the same number of entries and contain the channels.
    before = after = start = begin = 0
    while before < len(given):
        start, begin = before, after
        if after == len(shape):
            return None
        entries, found = given[before], shape[after]
        before, after = before + 1, after + 1
        while entries != found or (before == len(given) and after < len(shape)):
            if found < entries or before == len(given):
                if after == len(shape):
                    return None
                found *= shape[after]
                after += 1
            else:
                entries *= given[before]
                before += 1
        if start <= axis < before:
            break
    flexible = [place for place in range(begin, after) if place in adapting]
    if start == 0 or len(flexible) != 1:
        return None
    own = [1] * len(given)
    own[axis] = len(label)
    run = np.broadcast_to(label.reshape(own[start:before]), tuple(given[start:before])).reshape(
        tuple(shape[begin:after])
    )
    place = flexible[0]
    return np.moveaxis(run, place - begin, 0).reshape(shape[place], -1), place


def moved_axis(name: str, args: Sequence[Any], kwargs: dict[str, Any], ndim: int, axis: int) -> int | None:
    """Return where an axis is behind a function that moves axes, or `None` if the first axis or this one would go.

    Args:
        name: Name of the function.
        args: Its arguments behind the tensor.
        kwargs: Its named arguments.
        ndim: Number of axes of the tensor.
        axis: The axis to follow.
    """
    values = [*args, *(kwargs[key] for key in ("dim", "dim0", "dim1", "dims", "axis0", "axis1") if key in kwargs)]
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = list(values[0])
    if not values or not all(isinstance(value, int) for value in values):
        return None
    if name == "permute":
        order = [value % ndim for value in values]
    elif name in ("transpose", "swapaxes", "swapdims"):
        order = list(range(ndim))
        first, second = (value % ndim for value in values)
        order[first], order[second] = second, first
    elif name == "unsqueeze":
        place = values[0] % (ndim + 1)
        return None if place == 0 else axis + (place <= axis)
    else:
        return None
    return order.index(axis) if order[0] == 0 else None


def reduced_axis(axes: Any, keeps: bool, ndim: int, axis: int) -> int | None:
    """Return where an axis is behind a reduction over other axes, or `None` if the images or the axis are reduced."""
    axes = axes if isinstance(axes, (tuple, list)) else (axes,)
    if not axes or not all(isinstance(one, int) for one in axes):
        return None
    gone = {one % ndim for one in axes}
    if gone & {0, axis}:
        return None
    return axis if keeps else axis - sum(one < axis for one in gone)


def indexed_axis(index: Any, ndim: int, axis: int) -> int | None:
    """Return where an axis is behind an indexing that takes all of it, or `None` for any other indexing.

    Args:
        index: The expression in the brackets.
        ndim: Number of axes of the tensor.
        axis: The axis to follow; axis 0 has to remain too.
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    taken = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if Ellipsis in [entry for entry in entries if entry is Ellipsis]:
        place = next(n for n, entry in enumerate(entries) if entry is Ellipsis)
        entries[place : place + 1] = [slice(None)] * (ndim - taken)
    else:
        entries += [slice(None)] * (ndim - taken)
    source = behind = 0
    for entry in entries:
        if entry is None:
            behind += 1
            continue
        if source in (0, axis) and entry != slice(None):
            return None
        if source == axis:
            return behind
        if not isinstance(entry, (int, slice)):
            return None
        behind += isinstance(entry, slice)
        source += 1
    return None


def parameter_axes(
    name: str, args: Sequence[Any], axes: tuple[int, ...], shape: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the axes of a parameter behind a function that adds axes of size 1, or `None` for any other function.

    Args:
        name: Name of the function.
        args: Its arguments behind the tensor.
        axes: Axis of the parameter at each axis of the tensor, or -1 for an added one.
        shape: Shape of the result.
    """
    if name == "getitem":
        entries = args[0] if isinstance(args[0], tuple) else (args[0],)
        if not all(entry is None or entry == slice(None) for entry in entries):
            return None
        rest = iter(axes)
        found = [-1 if entry is None else next(rest) for entry in entries]
        return (*found, *rest)
    if name == "unsqueeze" and args and isinstance(args[0], int):
        place = args[0] % (len(axes) + 1)
        return (*axes[:place], -1, *axes[place:])
    if name in ("view", "reshape") and len(axes) == 1:
        sizes = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
        if list(sizes).count(-1) == 1 and math.prod(shape) == max(shape):
            return tuple(0 if size == -1 else -1 for size in sizes)
    return None
