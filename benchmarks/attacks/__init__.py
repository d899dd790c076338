"""Campaign of attacks and faults, singly and in pairs: agents that lie or stall (agents), strangers
with and without certificates (strangers), damaged files, clocks and processes (damage), and the
campaign itself (command).
"""
