"""Trainers: what computes for a task, one file each behind one protocol."""
