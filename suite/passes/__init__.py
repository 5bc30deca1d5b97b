"""What the passes over a suite's finished trials share: which trials run again, their steps, and their processes."""
