"""Run the command `coordinator` as `python -m coordinator.cli`."""

from coordinator.cli.main import main

main(prog_name="coordinator")
