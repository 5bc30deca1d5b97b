"""Images in memory: splits, augmentation, and the file that keeps decoded images."""
