"""3x3 convolutions that skip masked weights: dispatch and tables of nonzero weights."""
