"""One training: the network with its channels, the training loop, and what it costs."""
