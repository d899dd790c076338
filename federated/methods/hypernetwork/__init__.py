"""RecipFL's graph hypernetwork, which generates the weights of a submodel from its graph."""
