"""Run the command `edge-gateway` with `python -m edge_gateway`."""

from edge_gateway.command import main

main(prog_name="edge-gateway")
