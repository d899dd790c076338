"""Analyse the networks of a run as the papers do: similarity, weights, steps and branches."""
