"""Networks, each as its paper's code builds it."""
