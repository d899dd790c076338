"""Floods that a run must withstand: the process that floods (attacker), one row of the benchmark
(trial), revocations (revocations) and the command (command).
"""
