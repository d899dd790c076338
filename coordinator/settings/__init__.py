"""Define and read the configuration of a run: its tables, defaults and sources."""
