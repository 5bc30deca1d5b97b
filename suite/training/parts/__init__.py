"""Parts of the training loop: its progress, the average of the weights, and the mixing of batches."""
