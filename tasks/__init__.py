"""Data sets and their recipes; the models are in `tasks.models`."""
