"""Updates of malicious devices, for research: attacks that a simulation or a test fleet can try."""
