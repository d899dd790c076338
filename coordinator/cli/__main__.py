"""Entry point of `python -m coordinator.cli`."""

from coordinator.cli.main import main

main(prog_name="coordinator")
