"""What every trial needs, and nothing about any one method."""

__version__ = "0.1.0"
