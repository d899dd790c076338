"""Simulated devices on one machine: the same rounds over links in memory."""
