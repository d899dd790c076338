"""Aggregate the updates of a round: sums and means, robust rules, privacy, late updates, and the
cost of training.
"""
