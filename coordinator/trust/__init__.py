"""Validation of updates: shape, norm bounds, robust rules, differential privacy."""
