"""Mixup and CutMix of whole training batches, by torchvision's transforms.

Sources: Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018; Yun et al., "CutMix: Regularization
Strategy to Train Strong Classifiers with Localizable Features", ICCV 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suite.plan import random_key
from suite.recipe import Augmentation


class BatchMixing:
    """Mixes the images and labels of a training batch.

    The transform mixes each image with the one before it in the shuffled batch, by one share for the whole batch. The
    random numbers depend only on the seed, the epoch and the index of the batch in it, and come from the CPU for every
    device. A resumed trial and every method therefore get the same images. torch's random state does not change.

    Args:
        augmentation: Augmentation of the recipe, with `mixup` or `cutmix`.
        num_classes: Number of classes.
        seed: Seed of the trial.
    """

    def __init__(self, augmentation: Augmentation, num_classes: int, seed: int) -> None:
        # torchvision takes a second to import, which training without mixing should not cost.
        from torchvision.transforms.v2 import CutMix, MixUp

        wanted = ((MixUp, augmentation.mixup), (CutMix, augmentation.cutmix))
        self._seed = seed
        self._transforms = [kind(alpha=alpha, num_classes=num_classes) for kind, alpha in wanted if alpha]

    def __call__(self, images: Tensor, labels: Tensor, epoch: int, batch: int) -> tuple[Tensor, Tensor]:
        """Return a mixed batch.

        Args:
            images: (N, C, H, W) float32, channels-last.
            labels: (N,) int64.
            epoch: Number of the epoch, from 0.
            batch: Index of the batch in the epoch.

        Returns:
            Images of the same shape and memory format, and probabilities (N, classes) float32.
        """
        random = torch.get_rng_state()
        try:
            # `torch.manual_seed` would also seed the generators of all GPUs.
            torch.default_generator.manual_seed(random_key(self._seed, epoch, batch, "batch", "mixing"))
            transform = self._transforms[0]
            if len(self._transforms) > 1:
                transform = self._transforms[int(torch.randint(len(self._transforms), ()))]
            mixed, targets = transform(images, labels)
        finally:
            torch.set_rng_state(random)
        return mixed.contiguous(memory_format=torch.channels_last), targets
