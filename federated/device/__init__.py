"""The agent's half of the protocol: a pure state machine and its driver. Torch-free."""
