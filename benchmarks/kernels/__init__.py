"""Times of the pruning kernels by layer, compared with a copy of the same tensor."""
