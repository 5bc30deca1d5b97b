"""Finding the index spaces of a model, and removing channels and residual branches from it."""
