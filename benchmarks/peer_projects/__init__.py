"""Run other projects for comparison, each in a virtual environment of its own."""
