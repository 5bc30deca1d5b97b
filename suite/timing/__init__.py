"""The time pass: training times relative to dense, from steps that run in turn with dense steps after the trials."""
