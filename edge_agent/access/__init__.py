"""Obtain and select this device's credentials: its certificates and the agent's name."""
