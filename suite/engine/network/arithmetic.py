"""Count the multiply-adds of an operation of torch's dispatcher.

A product sums up products of the elements of two tensors, as a matrix product or a convolution does. Its multiply-adds
follow from the shapes. Attention has a formula here, so that the count is the same with every version of torch. Other
formulas are those of `torch.utils.flop_counter`. An operation without a formula has no product if it is a view, is
tagged as elementwise, or is in `FREE`. For all others, also of other libraries, the number is unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

# Operations without a product, by names from which `_is_free` has removed prefixes and suffixes. Views, and operations
# that all supported versions of torch tag as elementwise, need no entry.
FREE = {
    # Copies and changes of shape.
    "_coalesce", "_pin_memory", "_reshape_copy", "_stack", "_to_copy", "_to_dense", "_to_sparse", "_to_sparse_bsc",
    "_to_sparse_bsr", "_to_sparse_csc", "_to_sparse_csr", "_unsafe_view", "as_strided_scatter", "block_diag", "cat",
    "channel_shuffle", "col2im", "complex", "constant_pad", "diag_embed", "diagonal_scatter", "flip", "im2col", "lift",
    "pixel_shuffle", "pixel_unshuffle", "polar", "record_stream", "reflection_pad", "repeat", "repeat_interleave",
    "replication_pad", "resize", "resize_as", "roll", "rot90", "select_scatter", "set", "stack", "tril", "triu",
    "unsafe_split", "unsafe_split_with_sizes",
    # Tensors that are like another one, and random numbers.
    "_fused_dropout", "bernoulli", "cauchy", "empty_like", "exponential", "fill", "full_like", "geometric",
    "log_normal", "multinomial", "native_dropout", "new_empty", "new_empty_strided", "new_full", "new_ones",
    "new_zeros", "normal", "ones_like", "poisson", "rand_like", "randint_like", "randn_like", "random", "uniform",
    "zero", "zeros_like",
    # Indexing and sorting.
    "_index_put_impl", "_unique", "_unique2", "_unsafe_index", "_unsafe_index_put", "bucketize", "embedding",
    "embedding_dense", "embedding_renorm", "gather", "index", "index_add", "index_copy", "index_fill", "index_put",
    "index_reduce", "index_select", "isin", "kthvalue", "masked_scatter", "masked_select", "nonzero", "nonzero_static",
    "put", "scatter", "scatter_add", "scatter_reduce", "searchsorted", "sort", "take", "topk", "unique_consecutive",
    "unique_dim",
    # Reductions and cumulative operations of one tensor.
    "_cummax_helper", "_cummin_helper", "_logcumsumexp", "all", "amax", "amin", "aminmax", "any", "argmax", "argmin",
    "bincount", "count_nonzero", "cummax", "cummin", "cumprod", "cumsum", "dist", "histc", "linalg_vector_norm",
    "logcumsumexp", "logsumexp", "mean", "median", "mode", "nanmedian", "nansum", "norm", "prod", "renorm", "std",
    "std_mean", "sum", "trace", "var", "var_mean",
    # Activations, gates and others.
    "_conj_physical", "_log_softmax", "_log_softmax_backward_data", "_masked_softmax", "_prelu_kernel", "_safe_softmax",
    "_softmax", "_softmax_backward_data", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "floor_divide", "glu",
    "hardswish", "leaky_relu", "log_sigmoid", "log_sigmoid_forward", "rrelu_with_noise",
    # Normalisation.
    "_batch_norm_no_update", "_batch_norm_with_update", "_fused_rms_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "_weight_norm_interface", "batch_norm", "batch_norm_elemt",
    "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts", "batch_norm_stats", "cudnn_batch_norm",
    "miopen_batch_norm", "native_batch_norm", "native_group_norm", "native_layer_norm",
    # Pooling and resampling.
    "_adaptive_avg_pool", "_grid_sampler_2d_cpu_fallback", "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa",
    "_upsample_lanczos2d_aa", "_upsample_nearest_exact", "adaptive_avg_pool", "adaptive_max_pool", "avg_pool",
    "cudnn_grid_sampler", "fractional_max_pool", "grid_sampler_2d", "grid_sampler_3d",
    "max_pool2d_with_indices", "max_pool3d_with_indices", "max_unpool", "mkldnn_adaptive_avg_pool", "mkldnn_max_pool",
    "upsample_bicubic", "upsample_bilinear", "upsample_linear", "upsample_nearest", "upsample_trilinear",
    # Losses.
    "_ctc_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "mse_loss",
    "multi_margin_loss", "multilabel_margin_loss_forward", "nll_loss", "nll_loss2d_forward", "nll_loss_forward",
    "smooth_l1_loss", "soft_margin_loss",
    # Rounding as in training for integers, and checks of values.
    "_assert_async", "_assert_tensor_metadata", "_fused_moving_avg_obs_fq_helper",
    "fake_quantize_per_channel_affine_cachemask", "fake_quantize_per_tensor_affine_cachemask",
}  # fmt: skip
# Fused attention with tokens before heads, (N, T, H, D), or of sequences of several lengths in one row, (T, H, D).
_TOKENS_FIRST = ("_flash_attention_", "_efficient_attention_", "torch_attn::_varlen_attn")
_HEADS_FIRST = ("_scaled_dot_product_", "_cudnn_attention_", "flex_attention")


@dataclass(frozen=True)
class Attention:
    """Shapes of a fused scaled dot-product attention, with heads before tokens.

    Attributes:
        query, key, value: (N, H, T, D) of queries, keys and values. Keys and values may have fewer heads, each of which
            several heads of the queries share.
        pairs: Number of pairs of a query and a key, over all N, for one head. A mask does not reduce it.
        tensors: Queries, keys and values, in the layout of the operation.
    """

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    pairs: int
    tensors: tuple[Tensor, ...]

    @property
    def macs(self) -> int:
        """Multiply-adds of queries by keys and of weights by values."""
        return self.query[-3] * self.pairs * (self.query[-1] + self.value[-1])


def name_of(func: Any) -> str:
    """Return the name of an operation: LIBRARY::NAME, or for torch's own the name without the `_` of in-place."""
    if isinstance(func, HigherOrderOperator):
        return func.name()
    library, _, name = func._schema.name.rpartition("::")
    return name.removesuffix("_") if library == "aten" else f"{library}::{name}"


def multiply_adds(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int | None:
    """Return the multiply-adds of an operation's products; `None` if their number is unknown."""
    tensors = [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, Tensor)]
    if all(is_dense(tensor) for tensor in tensors):  # the formulas hold for dense tensors only
        name = name_of(func)
        if is_attention(name):
            fused = attention_of(func, args, kwargs)
            # The backward has two products for each one of the forward. What kernels recompute does not count.
            return None if fused is None else fused.macs * (2 if name.endswith("_backward") else 1)
        if (formula := _formula(func)) is not None:
            return int(formula(*args, **kwargs, out_val=out)) // 2
    if isinstance(func, HigherOrderOperator):
        return None
    creates = not tensors
    asks = not func._schema.is_mutable and not any(isinstance(leaf, Tensor) for leaf in tree_leaves(out))
    return 0 if creates or asks or _is_free(func) else None


def attention_of(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Attention | None:
    """Return the shapes of a fused attention, forward or backward; `None` for other operations.

    The result is also `None` for keys in pages (`block_table`), because the shapes do not give their number.
    """
    if not is_attention(name_of(func)):
        return None
    names = ["query", "key", "value"]
    if not isinstance(func, HigherOrderOperator):
        names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    if given.get("block_table") is not None or given.get("seqused_k") is not None:
        return None
    tensors = tuple(given[one] for one in ("query", "key", "value"))
    ends = [given.get(f"cum_seq_{one}", given.get(f"cu_seq_{one}", given.get(f"cu_seqlens_{one}"))) for one in "qk"]
    if ends[0] is not None:
        longest = [given.get(f"max_{one}", given.get(f"max_seqlen_{one}")) for one in "qk"]
        return _of_sequences(tensors, (ends[0], ends[0] if ends[1] is None else ends[1]), longest)
    shapes = [tuple(one.shape) for one in tensors]
    if name_of(func).startswith(_TOKENS_FIRST):
        shapes = [(*shape[:-3], shape[-2], shape[-3], shape[-1]) for shape in shapes]
    query, key, value = shapes
    return Attention(query, key, value, math.prod(query[:-3]) * query[-2] * key[-2], tensors)


def _of_sequences(tensors: tuple[Tensor, ...], ends: tuple[Tensor, Tensor], longest: list[Any]) -> Attention:
    """Return the shapes of attention within sequences of several lengths, whose tokens are in one row.

    Args:
        tensors: (..., T, H, D) of queries, keys and values, with the tokens of all sequences.
        ends: Where the N sequences of queries and of keys begin and end, (N + 1,) each.
        longest: Length of the longest sequence of queries and of keys.
    """
    count = ends[0].numel() - 1
    # A meta tensor has no values. All sequences then count as the longest one.
    lengths = [[size] * count if one.is_meta else one.diff().tolist() for one, size in zip(ends, longest, strict=True)]
    query, key, value = (
        (count, one.shape[-2], size, one.shape[-1])
        for one, size in zip(tensors, (longest[0], longest[1], longest[1]), strict=True)
    )
    return Attention(query, key, value, sum(math.prod(pair) for pair in zip(*lengths, strict=True)), tensors)


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor has all its elements in memory, at strides: it is neither sparse nor nested."""
    return tensor.layout is torch.strided and not tensor.is_nested


def is_attention(name: str) -> bool:
    """Return whether an operation of this name is a fused scaled dot-product attention, forward or backward."""
    return name.startswith((*_TOKENS_FIRST, *_HEADS_FIRST))


@cache
def _formula(func: Any) -> Callable[..., int] | None:
    """Return torch's formula of an operation, also if it works in place."""
    if isinstance(func, HigherOrderOperator):
        return flop_registry.get(func)
    return flop_registry.get(func.overloadpacket) or flop_registry.get(_packet(name_of(func)))


@cache
def _is_free(func: Any) -> bool:
    """Return whether an operation is known to have no product."""
    if _is_tagged(func):
        return True
    if func.namespace != "aten":
        return False
    # A variant for lists of tensors, for gradients or for a number of dimensions is as free as the operation itself.
    plain = name_of(func).removeprefix("_foreach_").removesuffix("_backward")
    plain = re.sub(r"(?<=[a-z])[123]d$|_nd$", "", plain)
    packet = _packet(plain)
    overloads = () if packet is None else packet.overloads()
    return plain in FREE or any(_is_tagged(getattr(packet, overload)) for overload in overloads)


def _is_tagged(func: Any) -> bool:
    """Return whether torch describes an operation as elementwise or as a change of shape."""
    return func.is_view or not {torch.Tag.pointwise, torch.Tag.view_copy}.isdisjoint(func.tags)


def _packet(name: str) -> Any:
    return getattr(torch.ops.aten, name, None)
