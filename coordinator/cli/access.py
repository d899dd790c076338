"""The commands `coordinator enroll`, `revoke` and `authority`: who may take part, where devices
show certificates (start --tls).

They change the authority's folder; a coordinator that runs on it notices within a second.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.access.gate import authority_of
from coordinator.broker.addresses import own_address
from coordinator.broker.mosquitto import COORDINATOR, rights
from coordinator.cli.options import plainly
from coordinator.settings.services import Broker
from federated.errors import StoreError, UsageError
from federated.runtime.console import FORMAT
from federated.wire.enrolment_token import PORT

if TYPE_CHECKING:
    from coordinator.access.authority import Authority

__all__ = ["COMMANDS"]

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
PKI = click.option(
    "--pki",
    envvar="ESPALIER_BROKER__PKI",
    default="",
    metavar="DIR",
    help="the authority's folder  [default: of this user's data]",
)
# that a broker reads; the first three as they are
FILES = ("ca.pem", "server.pem", "crl.pem", "rights.acl")


@click.command()
@click.argument("name")
@click.option(
    "--host",
    metavar="HOST",
    help="name or address by which the device reaches this machine  [default: as the coordinator "
    "listens]",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help=f"where the coordinator enrols  [default: as it does, or {PORT}]",
)
@click.option(
    "--valid",
    default="1h",
    show_default=True,
    metavar="TIME",
    help="how long the token works: 90s, 30m, 1h, 7d",
)
@PKI
@FORMAT
def enroll(name: str, host: str | None, port: int | None, valid: str, pki: str, form: str) -> None:
    """Print a token by which one device can enrol as NAME, once (`edge-agent join --token`). Makes
    the authority where there is none.
    """
    with plainly("enroll"):
        seconds = seconds_of(valid)
        authority = authority_of(Broker(pki=pki))
        try:
            known = int(authority.registry.noted("enrolment") or PORT)
            # not bound: where the coordinator listens, or did last
            listen = authority.registry.noted("listen") or "0.0.0.0"  # noqa: S104
            host = (host or (own_address(listen) if listen in ("0.0.0.0", "::") else listen)).strip(  # noqa: S104
                "[]"
            )
            token = authority.invite(name, host, port or known, seconds)
        finally:
            authority.close()
        if form == "json":
            click.echo(
                json.dumps(
                    {
                        "name": name,
                        "token": str(token),
                        "host": host,
                        "port": token.port,
                        "fingerprint": token.fingerprint.hex(),
                    }
                )
            )
            return
        click.echo(str(token))
        click.echo(
            f"On the device, within {valid}, while the coordinator runs (start --tls):  "
            "edge-agent join --token-file -   and paste the line above",
            err=True,
        )


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@PKI
@FORMAT
def revoke(names: tuple[str, ...], pki: str, form: str) -> None:
    """Shut agents out: their certificates are good for nothing, and are not renewed. A coordinator
    under way cuts them off at once.
    """
    with plainly("revoke"):
        authority = authority_of(Broker(pki=pki))
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
    """Show the fleet's certificate authority and whom it let in; make it where there is none."""
    with plainly("authority"):
        found = authority_of(Broker(pki=pki, hosts=hosts))
        try:
            if target is not None:
                hand_over(found, target)
            told = described(found)
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


def described(authority: Authority) -> dict[str, Any]:
    """The authority as plain values. agents: the last certificate of each name."""
    from coordinator.access.certificates import server_names

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
    hosts = list(server_names(authority.server))
    return {
        "folder": str(authority.folder),
        "fingerprint": authority.fingerprint.hex(),
        "hosts": hosts,
        "agents": agents,
    }


def hand_over(authority: Authority, target: Path) -> None:
    """Writes a broker's files, for nobody else to read; by root they become those of the folder's
    owner. Raises StoreError.
    """
    try:
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = target.stat()
        content = {name: (authority.folder / name).read_bytes() for name in FILES[:-1]}
        content[FILES[-1]] = rights(COORDINATOR, authority.registry.barred()).encode()
        for name, data in content.items():
            part = target / f".{name}.part"
            part.unlink(missing_ok=True)
            with os.fdopen(
                os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                file.write(data)
                os.fsync(file.fileno())
            if os.geteuid() == 0:
                shutil.chown(part, owner.st_uid, owner.st_gid)
            part.replace(target / name)
    except OSError as error:
        raise StoreError(f"{target}: expected a folder to write to: {error}") from error


def seconds_of(text: str) -> float:
    """`90s`, `30m`, `1h`, `7d` in seconds. Raises UsageError."""
    found = re.fullmatch(r"([1-9][0-9]{0,4})([smhd])", text)
    if found is None:
        raise UsageError(f"--valid: expected a time such as 90s, 30m, 1h or 7d, found '{text}'")
    return float(found[1]) * UNITS[found[2]]


COMMANDS = (authority, enroll, revoke)
