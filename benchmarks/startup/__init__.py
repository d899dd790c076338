"""Measure how long commands take to start, and how much memory they need."""
