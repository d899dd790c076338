"""Conduct a run from its first round to its last: prepare it, start or resume it, and plan and run
its rounds.
"""
