"""The agent's half of the protocol: what it decides is a value, what it does is a driver. No torch
here.
"""
