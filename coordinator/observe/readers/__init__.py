"""Readers of a run's events, each a function `read(event)`."""
