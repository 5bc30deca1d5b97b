"""Prediction of a command's cost: a short probe of each setting, and a model of a cluster."""
