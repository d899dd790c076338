"""Define the command `coordinator` and list its subcommands. A subcommand is imported only when it
is used.
"""

from __future__ import annotations

import signal

import click

from federated.install_command import NAME
from federated.runtime.console import LazyCommand, LazyGroup

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "assign": LazyCommand(
        "coordinator.cli.assign:assign",
        "Show which submodel each profiled device would get.",
    ),
    "audit": LazyCommand(
        "coordinator.cli.audit:audit",
        "Show who asked for what, when and from where.",
    ),
    "authority": LazyCommand(
        "coordinator.cli.authority:authority",
        "Show the fleet's certificate authority and the enrolled agents.",
    ),
    "check": LazyCommand(
        "coordinator.cli.check:check",
        "Check the files of RUN against their digests.",
    ),
    "claim": LazyCommand(
        "coordinator.cli.claim:claim",
        "Let the devices of BATCH claim certificates with a token.",
    ),
    "demo": LazyCommand(
        "coordinator.cli.demo:demo",
        "Train on four simulated devices, and infer on a fifth.",
    ),
    "devices": LazyCommand(
        "coordinator.cli.devices:devices",
        "Show the agents of RUN, their devices and submodels.",
    ),
    "doctor": LazyCommand(
        "coordinator.cli.doctor:doctor",
        "Check whether this machine and a broker can serve a run.",
    ),
    "enroll": LazyCommand(
        "coordinator.cli.enroll:enroll",
        "Create a token that enrols one device as NAME.",
    ),
    "export": LazyCommand(
        "coordinator.cli.export:export",
        "Export the submodels of RUN as ONNX, with a model card.",
    ),
    "grant": LazyCommand(
        "coordinator.cli.grant:grant",
        "Let devices take part in a run, or show their rights.",
    ),
    "group": LazyCommand(
        "coordinator.cli.group:group",
        "Put devices into GROUP, or list its devices.",
    ),
    "init": LazyCommand(
        "coordinator.cli.init:init_command",
        "Write a configuration file with every setting explained.",
    ),
    "log": LazyCommand(
        "coordinator.cli.log:log",
        "Show the events of RUN.",
    ),
    "methods": LazyCommand(
        "coordinator.cli.methods:methods",
        "List the federated methods and their papers, or explain NAME.",
    ),
    "pause": LazyCommand(
        "coordinator.cli.pause:pause",
        "Pause RUN after its current round, or resume it with --off.",
    ),
    "pin": LazyCommand(
        "coordinator.cli.pin:pin",
        "Give AGENT the submodel SUBMODEL from the next round on.",
    ),
    "plot": LazyCommand(
        "coordinator.cli.plot:plot",
        "Plot accuracy, traffic, times and assignment of RUN.",
    ),
    "register": LazyCommand(
        "coordinator.cli.register:register",
        "Let devices with certificates of another authority take part.",
    ),
    "release": LazyCommand(
        "coordinator.cli.release:release",
        "Release the networks of RUN to agents that infer.",
    ),
    "report": LazyCommand(
        "coordinator.cli.report:report",
        "Write a report on RUN as a web page.",
    ),
    "revoke": LazyCommand(
        "coordinator.cli.revoke:revoke",
        "Revoke the certificates and unused tokens of agents.",
    ),
    "runs": LazyCommand(
        "coordinator.cli.runs:list_runs",
        "List all runs: method, model, rounds, accuracy and state.",
    ),
    "schema": LazyCommand(
        "coordinator.cli.schema:schema_command",
        "Print the JSON Schema of a run's configuration.",
    ),
    "simulate": LazyCommand(
        "coordinator.cli.simulate:simulate",
        "Simulate the fleet of an experiment, here or on a Ray cluster.",
    ),
    "start": LazyCommand(
        "coordinator.cli.start:start",
        "Start or resume a run, and wait until it ends.",
    ),
    "status": LazyCommand(
        "coordinator.cli.status:status",
        "Show the state of RUN.",
    ),
    "stop": LazyCommand(
        "coordinator.cli.stop:stop",
        "Stop RUN after its current round.",
    ),
    "upgrade": LazyCommand(
        "coordinator.cli.upgrade:upgrade",
        "Name the VERSION that devices of RUN are to install.",
    ),
    "web": LazyCommand(
        "coordinator.cli.web:web",
        "Show all runs on a web page, and control them.",
    ),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=NAME)
@click.option("-v", "--verbose", is_flag=True, help="also log every message to and from the broker")
def main(verbose: bool) -> None:
    """Train one model on a fleet of unequal devices. Data never leaves the device."""
    from federated.runtime.logs import configure
    from federated.runtime.torch_import import defer_compiler

    defer_compiler()
    configure(verbose=verbose)
    # service managers stop a process with SIGTERM: handle it like ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
