"""The agent on a device. Importing this package imports no torch."""
