"""What a training costs: counted FLOPs, measured seconds and memory."""
