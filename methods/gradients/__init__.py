"""What methods with pruned gradients share."""
