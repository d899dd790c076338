"""The command `coordinator revoke`."""

from __future__ import annotations

import json

import click

from coordinator.cli.options import PKI, plainly
from federated.errors import UsageError
from federated.runtime.console import FORMAT

__all__ = ["revoke"]


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@PKI
@FORMAT
def revoke(names: tuple[str, ...], pki: str, form: str) -> None:
    """Revoke the certificates of agents. They are not renewed, and a running coordinator
    disconnects these agents at once.
    """
    with plainly("revoke"):
        from coordinator.access.authority_folder import open_authority
        from coordinator.settings.services import Broker

        authority = open_authority(Broker(pki=pki))
        try:
            unknown = sorted(
                set(names) - {certificate.name for certificate in authority.registry.certificates()}
            )
            counts = {
                name: authority.revoke(name) for name in dict.fromkeys(names) if name not in unknown
            }
        finally:
            authority.close()
        if form == "json":
            click.echo(json.dumps({"revoked": counts, "unknown": unknown}))
        else:
            for name, count in counts.items():
                click.echo(
                    f"{name}: {f'{count} certificates revoked' if count != 1 else 'revoked'}"
                    if count
                    else f"{name}: has no good certificate"
                )
        if any(counts.values()) and form == "text":
            click.echo(
                "a coordinator that runs cuts them off; a broker of your own must be "
                "told: coordinator authority --for-broker DIR, then reload it",
                err=True,
            )
        if unknown:
            raise UsageError(
                f"never enrolled here: {', '.join(unknown)}; coordinator authority lists who was"
            )
