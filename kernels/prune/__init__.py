"""n:m pruning of output gradients: dispatch, argument checks, reference."""
