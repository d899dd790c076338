"""Load data sets, and partition them among devices. Importing this package imports no torch."""
