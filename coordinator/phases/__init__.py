"""The phases of a round: training, calibration, evaluation."""
