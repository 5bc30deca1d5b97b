"""What methods with masked weights share."""
