"""Data sets of devices, and ways to partition them. Importing this package imports no torch."""
