"""PruneTrain, its baselines, and the group lasso that they share."""

from methods.prunetrain.prunetrain import PruneTrain

__all__ = ["PruneTrain"]
