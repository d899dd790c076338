"""`python -m edge_agent.cli` is the command `edge-agent`."""

from edge_agent.cli.main import main

main(prog_name="edge-agent")
