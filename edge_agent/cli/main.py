"""The command `edge-agent`. A subcommand is imported when it is used."""

from __future__ import annotations

import click

from federated.runtime.command_group import LazyCommand, LazyGroup

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "bench": LazyCommand(
        "edge_agent.cli.bench:bench",
        "Measure how fast this device runs and trains each submodel of a network, or runs any ONNX "
        "FILES.",
    ),
    "doctor": LazyCommand(
        "edge_agent.cli.doctor:doctor",
        "Check whether this device can take part, and say how to solve each problem.",
    ),
    "finetune": LazyCommand(
        "edge_agent.cli.finetune:finetune",
        "Adapt the released network to this device's own data, and compare it with the one before.",
    ),
    "infer": LazyCommand(
        "edge_agent.cli.infer:infer",
        "Infer on INPUTS with the network that a run released to this agent.",
    ),
    "join": LazyCommand(
        "edge_agent.cli.join:join",
        "Measure this device, join a run and train until it ends.",
    ),
    "profile": LazyCommand(
        "edge_agent.cli.profile:profile",
        "Measure this device: hardware, limits, and how fast it trains and infers.",
    ),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "EDGE_AGENT"},
)
@click.version_option(package_name="espalier")
@click.option("-v", "--verbose", is_flag=True, help="log what happens on the wire")
def main(verbose: bool) -> None:
    """One device of a federation. Its data never leave it."""
    from federated.runtime.logs import configure

    configure(verbose=verbose)
