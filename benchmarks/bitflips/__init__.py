"""Flip bits in the files of an interrupted run, and check that the damage is noticed."""
