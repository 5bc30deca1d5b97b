"""The training loop, the hooks of a method in it, and the checks of a method."""
