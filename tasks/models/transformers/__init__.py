"""Vision transformers, and what gives them layers that methods can plan."""
