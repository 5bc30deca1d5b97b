"""Vision transformers, and the modules that give them layers which methods can plan."""
