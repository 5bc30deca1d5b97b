"""Products with a compressed output gradient. They skip pruned channels."""
