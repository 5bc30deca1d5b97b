"""Parts that several methods share. A plugin may import all of them.

- `masking`: the base class of methods that mask weights; it combines the parts below.
- `scores`: how much each weight matters.
- `distributions`: how the remaining weights are divided among the layers.
- `structures`: which weights remain in one layer.
- `schedules`: when, and how far, weights are masked.
- `patterns`: patterns of 3x3 kernels, and a group lasso on what they leave out.
- `group_lasso`, `lasso`: a group lasso on channels, and the removal of the channels that it drives to zero.
- `mixup`: mixed images and labels.
- `clicktrain_settings`: ClickTrain's published settings.
"""
