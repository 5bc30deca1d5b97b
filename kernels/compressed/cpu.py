"""The compiled products with a compressed output gradient on the CPU."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.compressed import proof
from kernels.compressed.operands import Geometry, Gradient, Pair
from kernels.cpu.library import open_optional

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


@dataclass(frozen=True)
class Products:
    """The compiled products, on `threads` threads, or on as many as torch uses."""

    library: ctypes.CDLL
    threads: int | None = None

    def __post_init__(self) -> None:
        pointer, small = ctypes.c_void_p, ctypes.c_int
        for product in (self.library.pdt_data_gradient, self.library.pdt_weight_gradient):
            product.argtypes = [*[pointer] * 5, small, small]
            product.restype = small

    def with_threads(self, threads: int) -> Products:
        return Products(self.library, threads)

    def data_gradient(self, grad: Gradient, weight: Tensor, size: Pair, geometry: Geometry) -> Tensor:
        """Return the data gradient, as `kernels.compressed.dispatch.data_gradient`."""
        rows = len(grad.values)
        shape = (rows, weight.shape[1]) if weight.ndim == 2 else (rows, weight.shape[1] * geometry.groups, *size)
        gradient = torch.empty(shape, dtype=weight.dtype, memory_format=_kernel_last(weight))
        operand = weight.contiguous(memory_format=_kernel_last(weight)).float()  # its memory is (K, R, S, C / groups)
        self._call("pdt_data_gradient", grad, operand, gradient, weight.dtype, _layer(grad, weight, size, geometry))
        return gradient

    def weight_gradient(self, grad: Gradient, activation: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        """Return the weight gradient, as `kernels.compressed.dispatch.weight_gradient`."""
        gradient = torch.empty(weight.shape, dtype=torch.float32, memory_format=_kernel_last(weight))
        operand = activation.contiguous(memory_format=_kernel_last(weight))
        layer = _layer(grad, weight, tuple(activation.shape[2:]), geometry)
        self._call("pdt_weight_gradient", grad, operand, gradient, activation.dtype, layer)
        same = gradient.dtype == weight.dtype and gradient.stride() == weight.stride()
        return gradient if same else torch.empty_like(weight).copy_(gradient)

    def _call(
        self, name: str, grad: Gradient, operand: Tensor, out: Tensor, dtype: torch.dtype, layer: np.ndarray
    ) -> None:
        """Call a compiled product. Tensors without elements need no call."""
        if out.numel() == 0 or grad.values.numel() == 0:
            out.zero_()
            return
        status = getattr(self.library, name)(
            layer.ctypes.data, grad.values.data_ptr(), grad.channels.data_ptr(), operand.data_ptr(), out.data_ptr(),
            FORMATS[dtype], self.threads or torch.get_num_threads(),
        )  # fmt: skip
        if status == 3:
            raise ValueError(
                f"a compressed gradient of {grad.n} of every {grad.m} of {layer[6]} channels has a value whose channel "
                f"is not in its group: the first {grad.n} values of a pixel belong to the first {grad.m} channels, and "
                "so on"
            )
        if status:
            raise MemoryError(f"{name.removeprefix('pdt_')}: no memory for a layer of {tuple(operand.shape)}")


@functools.cache
def library() -> Products | None:
    """Return the compiled kernels, built at first use; None if they are unavailable, which is logged once."""
    return open_optional("compressed_gradients", "products with compressed gradients", Products, proof.of_products)


def _kernel_last(weight: Tensor) -> torch.memory_format:
    """Return the memory format in which the channels are the last axis of a layer's operands."""
    return torch.contiguous_format if weight.ndim == 2 else torch.channels_last


def _layer(grad: Gradient, weight: Tensor, size: tuple[int, ...], geometry: Geometry) -> np.ndarray:
    """Return the fields of `pdt::Layer`. A linear layer is a 1x1 convolution of images with one pixel."""
    rows, *out_size, kept = grad.values.shape
    groups, window = geometry.groups, (*weight.shape[2:], *geometry.stride, *geometry.padding, *geometry.dilation)
    if weight.ndim == 2:
        size, out_size, groups, window = (1, 1), [1, 1], 1, (1, 1, 1, 1, 0, 0, 1, 1)
    channels = (weight.shape[1] * groups, len(weight), groups)
    return np.array([rows, *size, *out_size, *channels, *window, grad.n, grad.m, kept], np.int64)
