"""Planned layers, their products, and what happens in a forward pass; `channels` finds and cuts channels."""
