"""The credentials of a device: certificates, its name, and its HTTP address and token."""
