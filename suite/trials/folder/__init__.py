"""The files of a suite: its folder and lock, the records of its trials, its table of results."""
