"""The agent's half of the protocol: a pure state machine, and the event loop that drives it.
Torch-free.
"""
