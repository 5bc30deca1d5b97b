"""Mathematics that several methods use."""
