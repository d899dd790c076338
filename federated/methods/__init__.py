"""Federated methods: one file per method, with its presets; the paper on top, then the difference
from what it builds on.
"""
