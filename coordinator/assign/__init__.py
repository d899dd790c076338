"""Decide which agents take part in a round, and which submodel each of them trains."""
