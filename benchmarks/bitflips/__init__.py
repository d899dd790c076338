"""Bit flips in the files of an interrupted run."""
