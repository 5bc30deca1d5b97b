"""The profile pass: where the time of a training step goes, by part, layer and product."""
