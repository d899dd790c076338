"""`coordinator revoke NAME...`: revoke the certificates of agents."""

from __future__ import annotations

import click

from coordinator.cli.options import PKI, print_errors
from federated.errors import UsageError
from federated.runtime.console import FORMAT, print_result
from federated.runtime.unit_formatting import format_count

__all__ = ["revoke"]


@click.command()
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--group", metavar="GROUP", help="also revoke all agents in this group")
@PKI
@FORMAT
def revoke(names: tuple[str, ...], group: str | None, pki: str, form: str) -> None:
    """Revoke the certificates and unused tokens of agents.

    A revoked certificate cannot be renewed. A running coordinator disconnects the agents at once.
    """
    with print_errors("revoke"):
        from coordinator.access.configured_authority import find_members, revoke_agents
        from coordinator.settings.service_tables import Broker

        if not names and group is None:
            raise UsageError("expected NAME... or --group GROUP")
        members = find_members(Broker(pki=pki), group) if group is not None else ()
        counts, unknown = revoke_agents(Broker(pki=pki), (*names, *members))
        lines = [
            f"{name}: revoked {format_count(count, 'certificate')}"
            if count
            else f"{name}: no valid certificate"
            for name, count in counts.items()
        ]
        text = (lambda _: "\n".join(lines)) if lines else None
        print_result({"revoked": counts, "unknown": unknown}, form, text)
        if any(counts.values()) and form == "text":
            click.echo(
                "A running coordinator disconnects them. For an existing broker, run `coordinator "
                "authority --for-broker DIR` and reload it.",
                err=True,
            )
        if unknown:
            raise UsageError(
                f"unknown agents: {', '.join(unknown)}; list the enrolled agents with: "
                "coordinator authority"
            )
