"""`coordinator group GROUP [NAME...]`: show a group of devices, or change it."""

from __future__ import annotations

import click

from coordinator.cli.options import PKI, print_errors
from federated.errors import UsageError
from federated.runtime.console import FORMAT, print_result

__all__ = ["group"]


@click.command()
@click.argument("name", metavar="GROUP")
@click.argument("agents", nargs=-1, metavar="[NAME...]")
@click.option("--off", is_flag=True, help="remove the devices from the group")
@PKI
@FORMAT
def group(name: str, agents: tuple[str, ...], off: bool, pki: str, form: str) -> None:
    """Put devices into GROUP, or list its devices.

    The coordinator keeps the groups of enrolled devices. `coordinator authority`, `grant`, `revoke`
    and `upgrade` select by them with --group.
    """
    with print_errors("group"):
        from coordinator.access.configured_authority import change_group, find_members
        from coordinator.settings.service_tables import Broker

        wanted = Broker(pki=pki)
        if off and not agents:
            raise UsageError("--off: expected the devices to remove")
        if agents:
            change_group(wanted, name, agents, remove=off)
            print_result({"group": name, "changed": agents}, form)
        else:
            members = find_members(wanted, name)
            print_result({"group": name, "agents": members}, form, lambda _: "\n".join(members))
