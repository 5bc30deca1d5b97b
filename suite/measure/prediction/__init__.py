"""Prediction of what a command will take: a short probe of each setting, and a model of a cluster."""
