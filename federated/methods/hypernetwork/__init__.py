"""Graph hypernetwork of RecipFL."""
