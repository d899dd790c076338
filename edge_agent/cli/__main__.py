"""Run the command `edge-agent` with `python -m edge_agent.cli`."""

from edge_agent.cli.main import main

main(prog_name="edge-agent")
