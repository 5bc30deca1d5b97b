"""Ways to compute the products of a masked layer, and the choice of the fastest of them."""
