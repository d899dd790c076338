"""The command `coordinator authority`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.options import PKI, plainly
from federated.runtime.console import FORMAT

if TYPE_CHECKING:
    from coordinator.access.authority import Authority

__all__ = ["authority"]


@click.command()
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="a name or address for the broker's certificate; may be repeated",
)
@click.option(
    "--for-broker",
    "target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="write what a broker of your own reads",
)
@PKI
@FORMAT
def authority(hosts: tuple[str, ...], target: Path | None, pki: str, form: str) -> None:
    """Show the fleet's certificate authority and the enrolled agents. It is created if needed."""
    with plainly("authority"):
        from coordinator.access.authority_folder import open_authority
        from coordinator.settings.services import Broker

        found = open_authority(Broker(pki=pki, hosts=hosts))
        try:
            if target is not None:
                from coordinator.access.broker_files import write_broker_files

                write_broker_files(found, target)
            told = describe(found)
        finally:
            found.close()
        if form == "json":
            click.echo(json.dumps(told))
            return
        click.echo(
            f"authority    {told['folder']}\nfingerprint  {told['fingerprint']}\nbroker "
            f"      {', '.join(told['hosts'])}"
        )
        for agent in told["agents"]:
            click.echo(f"{agent['name']:<20} {agent['state']:<8} until {agent['until']}")
        if target is not None:
            click.echo(
                f"written to {target}: ca.pem, server.pem, crl.pem, rights.acl; "
                "mosquitto reads them again at SIGHUP (systemctl reload mosquitto)"
            )


def describe(authority: Authority) -> dict[str, Any]:
    """The authority as plain values. agents: the last certificate of each name."""
    from coordinator.access.certificates import read_server_names

    last = {certificate.name: certificate for certificate in authority.registry.certificates()}
    agents = [
        {
            "name": one.name,
            "state": "revoked"
            if one.revoked is not None
            else "over"
            if one.ends < time.time()
            else "good",
            "until": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(one.ends)),
            "serial": one.serial,
        }
        for one in last.values()
    ]
    hosts = list(read_server_names(authority.server))
    return {
        "folder": str(authority.folder),
        "fingerprint": authority.fingerprint.hex(),
        "hosts": hosts,
        "agents": agents,
    }
