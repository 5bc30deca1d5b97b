"""The CPU kernel: its sources, its build at first use, and its loading."""
