"""Planned layers and their products; finding and cutting the channels of a model."""
