"""Checks of texts against results, and the programs that produce results on another machine."""
