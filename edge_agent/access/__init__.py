"""Credentials of a device: certificates, the agent's name, and the HTTP address and token."""
