"""Simulated devices on one machine, over links in memory."""
