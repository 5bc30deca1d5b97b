"""Trials: their specification, their processes, and what they leave."""
