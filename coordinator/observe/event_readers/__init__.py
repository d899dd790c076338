"""Readers of a run's events: log, metrics, files and terminal."""
