"""n:m pruning of output gradients: rule, dispatch, reference, and the launch on each device."""
