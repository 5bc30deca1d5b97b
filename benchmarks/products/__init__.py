"""Search for convolutions that compute wrong products on a CPU."""
