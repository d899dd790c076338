"""`coordinator register NAME...`: let devices with certificates of another authority take part."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import FILE, PKI, print_errors
from federated.errors import UsageError
from federated.runtime.console import FORMAT, print_result
from federated.runtime.unit_formatting import format_count

__all__ = ["register"]


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option(
    "--from",
    "source",
    type=FILE,
    metavar="FILE",
    help="CSV file of devices, with the column name, and optionally groups and runs (separated by "
    "spaces)",
)
@PKI
@FORMAT
def register(names: tuple[str, ...], source: Path | None, pki: str, form: str) -> None:
    """Let devices with certificates of another authority take part.

    NAME is the common name in the certificate. In runs with the setting `broker.ca`, only
    registered names of that authority have rights. `coordinator revoke NAME` removes them.
    """
    with print_errors("register"):
        from coordinator.access.configured_authority import register_devices
        from coordinator.access.enrolment_list import REGISTERED, Device, read_devices
        from coordinator.settings.service_tables import Broker

        if bool(names) == (source is not None):
            raise UsageError("expected either NAME... or --from FILE")
        devices = (
            [Device(name, 0.0) for name in dict.fromkeys(names)]
            if source is None
            else read_devices(source, 0.0, REGISTERED)
        )
        register_devices(Broker(pki=pki), devices)
        text = f"registered {format_count(len(devices), 'device')}"
        print_result({"registered": [one.name for one in devices]}, form, lambda _: text)
