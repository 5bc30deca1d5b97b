"""The methods, one file each; what they share is in `shared`, implementations of masked products in `backends`."""
