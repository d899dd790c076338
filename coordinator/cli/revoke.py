"""The command `coordinator revoke`."""

from __future__ import annotations

import json
from contextlib import closing

import click

from coordinator.cli.options import PKI, print_errors
from federated.errors import UsageError
from federated.runtime.console import FORMAT

__all__ = ["revoke"]


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@PKI
@FORMAT
def revoke(names: tuple[str, ...], pki: str, form: str) -> None:
    """Revoke the certificates of agents.

    They cannot be renewed, and a running coordinator disconnects these agents at once.
    """
    with print_errors("revoke"):
        from coordinator.access.authority_folder import open_authority
        from coordinator.settings.services import Broker

        with closing(open_authority(Broker(pki=pki))) as authority:
            enrolled = {certificate.name for certificate in authority.registry.certificates()}
            unknown = sorted(set(names) - enrolled)
            known = [name for name in dict.fromkeys(names) if name in enrolled]
            counts = authority.revoke_all(known) if known else {}
        if form == "json":
            click.echo(json.dumps({"revoked": counts, "unknown": unknown}))
        else:
            for name, count in counts.items():
                revoked = f"revoked {count} certificate{'' if count == 1 else 's'}"
                click.echo(f"{name}: {revoked if count else 'no valid certificate'}")
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
