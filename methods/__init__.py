"""The methods, one file each; shared mathematics beside them. They know the suite's contracts, never its trainer."""
