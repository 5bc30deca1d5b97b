"""What methods with masked weights share. A plugin may import all of it but the last two, which may change.

- `masking`: the base class of methods that mask weights; it combines the parts below.
- `scores`: how much each weight matters.
- `distributions`: how the remaining weights are divided among the layers.
- `structures`: which weights remain in one layer.
- `schedules`: when, and how far, weights are masked.
- `backends`: which products skip masked weights, chosen for each layer.
- `final_masks`: the base class of methods whose masks stay as they are from some step on, when kernels may skip.
"""
