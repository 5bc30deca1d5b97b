"""Reading a suite's folder: records, groups of trials, estimates, disturbed times."""
