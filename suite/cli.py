"""The entry point of the command line, under the name that installed scripts use."""

from suite.command.cli import main

__all__ = ["main"]
