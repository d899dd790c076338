"""Arithmetic of a round: aggregation, robust rules, privacy, accounting."""
