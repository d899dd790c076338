"""The entry point of the command `edge-agent`: it lists all subcommands, and imports one only when
it is used.
"""

from __future__ import annotations

import click

from federated.install_command import NAME
from federated.runtime.console import LazyCommand, LazyGroup

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "bench": LazyCommand(
        "edge_agent.cli.bench:bench",
        "Measure the speed and memory of submodels or ONNX FILES.",
    ),
    "certificate": LazyCommand(
        "edge_agent.cli.certificate:certificate",
        "Get a certificate of a company's authority by EST.",
    ),
    "doctor": LazyCommand(
        "edge_agent.cli.doctor:doctor",
        "Check whether this device can join a run.",
    ),
    "finetune": LazyCommand(
        "edge_agent.cli.finetune:finetune",
        "Adapt the released network to this device's own data.",
    ),
    "infer": LazyCommand(
        "edge_agent.cli.infer:infer",
        "Run inference on INPUTS with a released network.",
    ),
    "join": LazyCommand(
        "edge_agent.cli.join:join",
        "Join a run and train until it ends.",
    ),
    "profile": LazyCommand(
        "edge_agent.cli.profile:profile",
        "Measure this device's hardware, limits and speed.",
    ),
    "update": LazyCommand(
        "edge_agent.cli.update:update",
        "Install a WHEEL or VERSION, check it, and switch to it.",
    ),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "EDGE_AGENT"},
)
@click.version_option(package_name=NAME)
@click.option("-v", "--verbose", is_flag=True, help="also log every message to and from the broker")
def main(verbose: bool) -> None:
    """Train and run inference on this device. Its data never leaves it.

    Options can also be set in the environment, such as EDGE_AGENT_JOIN_BROKER for --broker of join.
    """
    from federated.runtime.logs import configure
    from federated.runtime.torch_import import defer_compiler

    defer_compiler()
    configure(verbose=verbose)
