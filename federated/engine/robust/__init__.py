"""Robust rules: how to combine the updates of a round when some devices may send anything."""
