"""`edge-agent doctor`: check whether this device can join a run."""
