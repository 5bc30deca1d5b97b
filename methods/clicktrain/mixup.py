"""Mixup: training on mixed pairs of images and labels.

Source: Zhang, Cisse, Dauphin, Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", ICLR 2018.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def mixup(images: Tensor, labels: Tensor, num_classes: int, alpha: float, key: int) -> tuple[Tensor, Tensor]:
    """Mix each image, and its label, with another one of the batch; one share applies to the whole batch.

    Args:
        images: (N, C, H, W).
        labels: (N,) class indices, or (N, classes) probabilities.
        num_classes: Number of classes.
        alpha: Both parameters of the Beta distribution from which the share is drawn.
        key: Seed of the draws, such as `Context.key("mixup")`.

    Returns:
        The mixed images, and (N, classes) probabilities.
    """
    generator = np.random.default_rng(key)
    share = float(generator.beta(alpha, alpha))
    others = torch.from_numpy(generator.permutation(len(images))).to(images.device)
    targets = F.one_hot(labels, num_classes).float() if labels.ndim == 1 else labels
    return torch.lerp(images[others], images, share), torch.lerp(targets[others], targets, share)
