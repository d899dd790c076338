"""`coordinator doctor`: check whether a run can use a broker."""

from __future__ import annotations

import sys

import click

from coordinator.cli.options import print_errors
from federated.runtime.console import FORMAT

__all__ = ["doctor"]


@click.command()
@click.option(
    "--broker",
    metavar="HOST|URL",
    required=True,
    help="address of the broker, with the coordinator's credentials",
)
@click.option("--run", metavar="NAME", help="run whose topics to try  [default: doctor]")
@FORMAT
def doctor(broker: str, run: str | None, form: str) -> None:
    """Check whether a run can use a broker.

    Print what the broker can do, and a remedy for each problem. The exit code is 0 if nothing
    failed, or else that of the first failure.
    """
    with print_errors("doctor"):
        from coordinator.access.broker_setup import add_certificate
        from coordinator.broker.external_broker_checks import examine
        from federated.wire.checks.check_result import print_checks

        sys.exit(print_checks(examine(add_certificate(broker), run), form))
