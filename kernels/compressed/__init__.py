"""Products with a compressed output gradient; channels that were pruned are skipped."""
