"""Networks that scale in width and depth. Importing this package imports no torch."""
