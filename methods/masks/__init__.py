"""What methods with masked weights share. A plugin may import all of it but `backends`, which may change.

- `masking`: the base class of methods that mask weights; it combines the parts below.
- `scores`: how much each weight matters.
- `distributions`: how the remaining weights are divided among the layers.
- `structures`: which weights remain in one layer.
- `schedules`: when, and how far, weights are masked.
"""
