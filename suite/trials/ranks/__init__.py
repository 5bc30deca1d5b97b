"""Ranks of a trial: the processes of a data-parallel training, which start and end together."""
