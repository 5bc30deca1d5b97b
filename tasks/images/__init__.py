"""Images in memory: splits, augmentation, and the file that stores decoded images."""
