"""The contract that coordinator and agents both sign. Importing this package imports no torch."""
