"""`edge-agent join`: the agent in a run, and the process that trains for it."""
