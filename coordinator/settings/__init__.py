"""The configuration of a run: its tables, defaults and sources."""
