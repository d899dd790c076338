"""Validation of updates: shapes, norm bounds, robust rules, differential privacy."""
