"""Prepare the output of commands: stored runs, their agents and logs, methods and settings."""
