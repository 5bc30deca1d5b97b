"""Explains the time of a step with the file of the profile pass: causes, parts, savings, layers."""
