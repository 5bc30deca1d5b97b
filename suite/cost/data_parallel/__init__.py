"""What data-parallel training adds to the cost of a training."""
