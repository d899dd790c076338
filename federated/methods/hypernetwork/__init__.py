"""A graph hypernetwork: one network that makes the weights of others from their graphs."""
