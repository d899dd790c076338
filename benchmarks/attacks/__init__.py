"""Run a fleet under attacks and faults, alone and in pairs: agents that lie or stall, strangers
with and without certificates, damaged files, and faults of clocks and processes.
"""
