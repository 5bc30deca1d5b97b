"""What an engine adds to the time of trials."""
