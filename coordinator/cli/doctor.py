"""`coordinator doctor`: check this machine and a broker."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from coordinator.cli.options import RUNS, print_errors
from federated.runtime.console import FORMAT

__all__ = ["doctor"]


@click.command()
@click.option(
    "--broker",
    metavar="HOST|URL",
    help="address of a broker, with the coordinator's credentials; without it, only this machine "
    "is checked",
)
@click.option(
    "--run",
    metavar="NAME",
    help="name of a run, to check that the broker allows its topics  [default: doctor]",
)
@RUNS
@FORMAT
def doctor(broker: str | None, run: str | None, runs: Path, form: str) -> None:
    """Check whether this machine and a broker can serve a run.

    Print what the broker can do, and a remedy for each problem. The exit code is 0 if nothing
    failed, or else that of the first failure.
    """
    with print_errors("doctor"):
        from coordinator.access.broker_address import add_certificate
        from coordinator.broker.coordinator_checks import examine
        from federated.wire.checks.check_result import print_checks

        address = None if broker is None else add_certificate(broker)
        sys.exit(print_checks(examine(address, run, runs), form))
