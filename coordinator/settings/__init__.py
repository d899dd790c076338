"""The configuration of a run: its tables, their defaults, and how it is loaded."""
