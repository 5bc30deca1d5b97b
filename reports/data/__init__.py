"""Reading the folder of a suite: records, groups of trials, estimates, disturbed times."""
