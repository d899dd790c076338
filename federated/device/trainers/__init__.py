"""Trainers, which do the computing of a task: one file each behind one protocol."""
