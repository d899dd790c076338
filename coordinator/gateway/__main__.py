"""Run the command `edge-gateway` with `python -m coordinator.gateway`."""

from coordinator.gateway.command import main

main(prog_name="edge-gateway")
