"""Tables and figures of the PruneTrain paper."""
