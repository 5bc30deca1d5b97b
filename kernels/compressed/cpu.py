"""The compiled products with a compressed output gradient on the CPU."""

from __future__ import annotations

import ctypes
import functools
import logging
import os

import numpy as np
import torch
from torch import Tensor

from kernels.compressed.reference import Pair
from kernels.cpu.build import BuildError
from kernels.cpu.library import open_library

log = logging.getLogger("pdt.kernels")

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled kernels, built at first use, or None if they are unavailable, which is logged once."""
    if os.environ.get("PDT_CPU_KERNEL") == "0":
        return None
    try:
        loaded, built = open_library("compressed_gradients")
    except BuildError as error:
        log.warning("products with compressed gradients: no compiled kernels, because %s", error)
        return None
    pointer, small = ctypes.c_void_p, ctypes.c_int
    for product in (loaded.pdt_data_gradient, loaded.pdt_weight_gradient):
        product.argtypes = [*[pointer] * 5, small, small]
        product.restype = small
    log.info("products with compressed gradients: compiled (%s; %s)", built.compiler, built.library)
    return loaded


def data_gradient(
    values: Tensor,
    channels: Tensor,
    weight: Tensor,
    size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    n: int,
    m: int,
) -> Tensor:
    """Return the data gradient; arguments and result as in `kernels.compressed.dispatch.data_gradient`."""
    is_linear = weight.ndim == 2
    shape = (values.shape[0], weight.shape[1] * groups) if is_linear else (len(values), weight.shape[1] * groups, *size)
    layout = torch.contiguous_format if is_linear else torch.channels_last
    gradient = torch.empty(shape, dtype=weight.dtype, memory_format=layout)
    numbers = _layer(values, weight, (1, 1) if is_linear else size, stride, padding, dilation, groups, n, m)
    _call("pdt_data_gradient", numbers, values, channels, _kernel_last(weight).float(), gradient, weight.dtype)
    return gradient


def weight_gradient(
    values: Tensor,
    channels: Tensor,
    activation: Tensor,
    weight: Tensor,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    n: int,
    m: int,
) -> Tensor:
    """Return the weight gradient; arguments and result as in `kernels.compressed.dispatch.weight_gradient`."""
    is_linear = weight.ndim == 2
    size = (1, 1) if is_linear else (activation.shape[2], activation.shape[3])
    numbers = _layer(values, weight, size, stride, padding, dilation, groups, n, m)
    layout = torch.contiguous_format if is_linear else torch.channels_last
    gradient = torch.empty(weight.shape, memory_format=layout)  # its memory is (K, R, S, C / groups)
    activation = activation.contiguous(memory_format=layout)
    _call("pdt_weight_gradient", numbers, values, channels, activation, gradient, activation.dtype)
    same = gradient.dtype == weight.dtype and gradient.stride() == weight.stride()
    return gradient if same else torch.empty_like(weight).copy_(gradient)


def _kernel_last(weight: Tensor) -> Tensor:
    """Return a weight whose memory is (K, R, S, C / groups) or (K, C)."""
    return weight.contiguous(memory_format=torch.contiguous_format if weight.ndim == 2 else torch.channels_last)


def _layer(
    values: Tensor,
    weight: Tensor,
    size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    n: int,
    m: int,
) -> np.ndarray:
    """Return the fields of `pdt::Layer`. A linear layer is a 1x1 convolution of images with one pixel."""
    rows, *out_size, kept = values.shape
    kernel = weight.shape[2:]
    if weight.ndim == 2:
        out_size, kernel, stride, padding, dilation, groups = [1, 1], torch.Size((1, 1)), (1, 1), (0, 0), (1, 1), 1
    numbers = (rows, *size, *out_size, weight.shape[1] * groups, len(weight), groups, *kernel)
    return np.array([*numbers, *stride, *padding, *dilation, n, m, kept], np.int64)


def _call(
    name: str, numbers: np.ndarray, values: Tensor, channels: Tensor, operand: Tensor, out: Tensor, dtype: torch.dtype
) -> None:
    """Call a compiled product; tensors without elements need no call."""
    if out.numel() == 0 or values.numel() == 0:
        out.zero_()
        return
    loaded = library()
    assert loaded is not None
    status = getattr(loaded, name)(
        numbers.ctypes.data, values.data_ptr(), channels.data_ptr(), operand.data_ptr(), out.data_ptr(),
        FORMATS[dtype], torch.get_num_threads(),
    )  # fmt: skip
    if status == 3:
        n, m = numbers[-3], numbers[-2]
        raise ValueError(
            f"a compressed gradient of {n} of every {m} of {numbers[6]} channels has a value whose channel is not in "
            f"its group: the first {n} values of a pixel belong to the first {m} channels, and so on"
        )
    if status:
        raise MemoryError(f"{name.removeprefix('pdt_')}: no memory for a layer of {tuple(operand.shape)}")
