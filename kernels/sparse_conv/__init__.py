"""Convolution with a fixed sparsity mask. It skips masked weights."""
