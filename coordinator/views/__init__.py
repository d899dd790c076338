"""Output of commands: stored runs, their agents and logs, and the methods."""
