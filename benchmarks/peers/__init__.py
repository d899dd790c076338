"""Run other projects to compare with, each in its own virtual environment and process."""
