"""`coordinator enroll NAME`: print a one-time token with which a device joins the fleet."""

from __future__ import annotations

import re
from contextlib import closing

import click

from coordinator.cli.options import PKI, print_errors
from federated.errors import UsageError
from federated.runtime.console import FORMAT, print_result
from federated.wire.enrolment_token import PORT

__all__ = ["enroll"]

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.command()
@click.argument("name")
@click.option(
    "--host",
    metavar="HOST",
    help="name or address at which the device reaches this machine  [default: the address on "
    "which the coordinator listens]",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help=f"port on which devices enrol  [default: that of the last run, or else {PORT}]",
)
@click.option(
    "--valid",
    default="1h",
    show_default=True,
    metavar="TIME",
    help="lifetime of the token: 90s, 30m, 1h, 7d",
)
@PKI
@FORMAT
def enroll(name: str, host: str | None, port: int | None, valid: str, pki: str, form: str) -> None:
    """Create a token that enrols one device as NAME.

    The token works once, with `edge-agent join --token-file`. The certificate authority is created
    if there is none.
    """
    with print_errors("enroll"):
        from coordinator.access.configured_authority import open_authority
        from coordinator.broker.local_addresses import find_own_address
        from coordinator.settings.service_tables import Broker

        seconds = parse_seconds(valid)
        with closing(open_authority(Broker(pki=pki))) as authority:
            known = int(authority.registry.get_fact("enrolment") or PORT)
            if not host:
                # not bound here: where the coordinator listens, or listened last
                host = authority.registry.get_fact("listen") or "0.0.0.0"  # noqa: S104
                if host in ("0.0.0.0", "::"):  # noqa: S104
                    host = find_own_address(host)
            host = host.strip("[]")
            token = authority.invite(name, host, port or known, seconds)
        result = {"name": name, "token": str(token), "host": host, "port": token.port}
        result["fingerprint"] = token.fingerprint.hex()
        print_result(result, form, lambda _: str(token))
        if form == "text":
            click.echo(
                f"On the device, run `edge-agent join --token-file -` within {valid} and paste the "
                "line above. The coordinator must be running (coordinator start --tls).",
                err=True,
            )


def parse_seconds(text: str) -> float:
    """Return a time such as 90s, 30m, 1h or 7d in seconds. Raises UsageError."""
    found = re.fullmatch(r"([1-9][0-9]{0,4})([smhd])", text)
    if found is None:
        raise UsageError(f"--valid: expected a time such as 90s, 30m, 1h or 7d, found '{text}'")
    return float(found[1]) * UNITS[found[2]]
