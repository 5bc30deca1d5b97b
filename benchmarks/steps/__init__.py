"""Times of training steps and of planning, compared with what a user would have without the suite."""
