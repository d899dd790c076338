"""`coordinator authority`: show the certificate authority of the fleet and the enrolled agents."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.options import PKI, print_errors
from federated.runtime.console import FORMAT, print_result

if TYPE_CHECKING:
    from coordinator.access.certificate_authority import Authority

__all__ = ["authority"]


@click.command()
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="name or address in the broker's certificate; may be repeated",
)
@click.option(
    "--for-broker",
    "target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="write the files for an existing broker to this folder",
)
@click.option("--group", metavar="GROUP", help="list only the agents in this group")
@PKI
@FORMAT
def authority(
    hosts: tuple[str, ...], target: Path | None, group: str | None, pki: str, form: str
) -> None:
    """Show the fleet's certificate authority and the enrolled agents.

    The authority is created if there is none.
    """
    with print_errors("authority"):
        from coordinator.access.configured_authority import open_authority
        from coordinator.settings.service_tables import Broker

        with closing(open_authority(Broker(pki=pki, hosts=hosts))) as found:
            if target is not None:
                from coordinator.access.broker_files import write_broker_files

                write_broker_files(found, target)
            facts = describe(found, group)
        print_result(facts, form, render)
        if target is not None and form == "text":
            click.echo(
                f"wrote ca.pem, server.pem, crl.pem and rights.acl to {target}; reload the broker "
                "to apply them (systemctl reload mosquitto)"
            )


def describe(authority: Authority, group: str | None) -> dict[str, Any]:
    """Return the authority as plain values, with each agent's certificate that expires last, and
    the registered names of another authority.

    group: list only its members; None: all agents.
    """
    from coordinator.access.certificate_files import read_server_names

    last = {certificate.name: certificate for certificate in authority.registry.list_certificates()}
    groups = authority.registry.list_groups()
    return {
        "folder": str(authority.folder),
        "fingerprint": authority.fingerprint.hex(),
        "hosts": list(read_server_names(authority.server)),
        "agents": [
            {
                "name": one.name,
                "state": describe_state(one.revoked is not None, one.ends),
                "until": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(one.ends)),
                "serial": one.serial,
                "groups": list(groups.get(one.name, ())),
            }
            for one in last.values()
            if group is None or group in groups.get(one.name, ())
        ],
        "registered": sorted(
            (
                {"name": name, "groups": list(groups.get(name, ()))}
                for name in authority.registry.list_registered()
                if group is None or group in groups.get(name, ())
            ),
            key=lambda one: str(one["name"]),
        ),
    }


def render(facts: dict[str, Any]) -> str:
    """Return the authority as text."""
    head = f"authority    {facts['folder']}\nfingerprint  {facts['fingerprint']}"
    agents = [
        f"{agent['name']:<20} {agent['state']:<8} {describe_end(agent):<28}  "
        f"{' '.join(agent['groups'])}".rstrip()
        for agent in facts["agents"]
    ]
    registered = [
        f"{one['name']:<20} {'registered':<37}  {' '.join(one['groups'])}".rstrip()
        for one in facts["registered"]
    ]
    return "\n".join([head, f"broker       {', '.join(facts['hosts'])}", *agents, *registered])


def describe_end(agent: dict[str, Any]) -> str:
    """Return when a certificate ends. A revoked one has ended already."""
    word = {"valid": "until", "expired": "on", "revoked": ""}[agent["state"]]
    return f"{word} {agent['until']}" if word else ""


def describe_state(revoked: bool, ends: float) -> str:
    if revoked:
        return "revoked"
    return "expired" if ends < time.time() else "valid"
