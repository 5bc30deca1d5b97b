"""ClickTrain: its settings, patterns and masks."""

from methods.clicktrain.clicktrain import ClickTrain

__all__ = ["ClickTrain"]
