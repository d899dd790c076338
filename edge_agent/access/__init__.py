"""Credentials of a device: certificates and the agent's name."""
