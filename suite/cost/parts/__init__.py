"""The parts of a training step: the clock that divides its time, and lower bounds of products."""
