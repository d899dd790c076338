"""Trainers, which train, calibrate and evaluate on a device: one file each behind one interface."""
