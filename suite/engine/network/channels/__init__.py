"""Find the index spaces of a model, and remove channels and residual branches from it."""
