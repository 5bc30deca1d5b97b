"""Entry point for final models of trials: `load_model` opens a trial's `model.pt` without the trial."""

from suite.engine.network.model_files import load_model

__all__ = ["load_model"]
