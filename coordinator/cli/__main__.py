"""`python -m coordinator.cli` is the command `coordinator`."""

from coordinator.cli.main import main

main(prog_name="coordinator")
