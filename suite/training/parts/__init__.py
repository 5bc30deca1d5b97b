"""Parts of the training loop: progress, average of the weights, mixing of batches, sizes of training images."""
