"""Convolution with a fixed sparsity mask; masked weights are skipped."""
