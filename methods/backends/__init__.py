"""Implementations of the products of masked layers, and the choice of the fastest one for each layer."""
