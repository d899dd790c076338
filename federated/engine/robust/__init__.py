"""Robust rules: aggregation that withstands some arbitrary updates."""
