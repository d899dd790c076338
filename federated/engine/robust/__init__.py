"""Robust rules: aggregation that withstands some updates with arbitrary (malicious) values."""
