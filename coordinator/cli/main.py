"""The command `coordinator`. A subcommand is imported when it is used."""

from __future__ import annotations

import signal

import click

from federated.runtime.command_group import LazyCommand, LazyGroup

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "assign": LazyCommand(
        "coordinator.cli.assign:assign",
        "Show, without a broker or a fleet, which submodel each profiled device would get, and "
        "why.",
    ),
    "authority": LazyCommand(
        "coordinator.cli.authority:authority",
        "Show the fleet's certificate authority and the enrolled agents.",
    ),
    "demo": LazyCommand(
        "coordinator.cli.demo:demo",
        "Train on four unequal devices, as real processes under enforced limits, and infer on a "
        "fifth.",
    ),
    "devices": LazyCommand(
        "coordinator.cli.devices:devices",
        "Show the agents of RUN (default: the latest): what each has and does, and why.",
    ),
    "enroll": LazyCommand(
        "coordinator.cli.enroll:enroll",
        "Print a token with which one device can enrol once, as NAME (`edge-agent join --token`).",
    ),
    "export": LazyCommand(
        "coordinator.cli.export:export",
        "Export the submodels of RUN as ONNX, in float32 and int8, with a model card.",
    ),
    "init": LazyCommand(
        "coordinator.cli.init:init_command",
        "Write a configuration with every setting, its default and an explanation.",
    ),
    "log": LazyCommand(
        "coordinator.cli.log:log",
        "Show the events of RUN (default: the one in progress, else the latest).",
    ),
    "methods": LazyCommand(
        "coordinator.cli.methods:methods",
        "List the federated methods and their papers, or explain NAME.",
    ),
    "pause": LazyCommand(
        "coordinator.cli.pause:pause",
        "Pause RUN (default: the one in progress) after its present round.",
    ),
    "release": LazyCommand(
        "coordinator.cli.release:release",
        "Release the networks of RUN to the agents that infer (`edge-agent infer --broker`).",
    ),
    "revoke": LazyCommand(
        "coordinator.cli.revoke:revoke",
        "Revoke the certificates of agents.",
    ),
    "runs": LazyCommand(
        "coordinator.cli.runs:list_runs",
        "List all runs: method, model, rounds, accuracy and state.",
    ),
    "schema": LazyCommand(
        "coordinator.cli.schema:schema_command",
        "Print the JSON Schema of a run's configuration, for editors and checkers of TOML files.",
    ),
    "simulate": LazyCommand(
        "coordinator.cli.simulate:simulate",
        "Simulate an experiment's fleet on this machine, with the rounds and methods of `start`.",
    ),
    "start": LazyCommand(
        "coordinator.cli.start:start",
        "Start a run, or resume one, and stay until it ends.",
    ),
    "status": LazyCommand(
        "coordinator.cli.status:status",
        "Show the state of RUN (default: the one in progress, else the latest).",
    ),
    "stop": LazyCommand(
        "coordinator.cli.stop:stop",
        "Stop RUN (default: the one in progress) after its present round.",
    ),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="espalier")
@click.option("-v", "--verbose", is_flag=True, help="log what happens on the wire")
def main(verbose: bool) -> None:
    """Train one model on a fleet of unequal devices. No data leave a device."""
    from federated.runtime.logs import configure

    configure(verbose=verbose)
    # a service manager stops a process by SIGTERM: handle it as ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
