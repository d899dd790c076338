"""Run the phases of a round: training, calibration of batch norm statistics, and evaluation."""
