"""`edge-agent join` and `edge-agent profile`: the agent and its training process."""
