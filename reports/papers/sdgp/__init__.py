"""Tables and figures of the SDGP paper."""
