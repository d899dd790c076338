"""What one phase of a round does: training, calibration, evaluation, and their results."""
