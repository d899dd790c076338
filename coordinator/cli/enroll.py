"""`coordinator enroll NAME`: print a one-time token with which a device joins the fleet, or write
those of a list of devices to a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.options import FILE, PKI, print_errors
from federated.errors import UsageError
from federated.runtime.console import FORMAT, print_result
from federated.wire.enrolment_token import PORT, Token

if TYPE_CHECKING:
    from coordinator.access.certificate_authority import Authority
    from coordinator.access.enrolment_list import Device

__all__ = ["enroll", "print_place"]


@click.command()
@click.argument("name", required=False)
@click.option(
    "--from",
    "source",
    type=FILE,
    metavar="FILE",
    help="CSV file of devices to enrol, with the column name, and optionally groups and runs "
    "(separated by spaces) and valid",
)
@click.option(
    "--out",
    type=FILE,
    metavar="FILE",
    help="new file for the tokens of --from, which only you may read: CSV, or JSON if its name "
    "ends with .json",
)
@click.option(
    "--skip-enrolled",
    is_flag=True,
    help="leave out the devices of --from that have or had a certificate, and say how many",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="GROUP",
    help="group to put the device into; may be repeated",
)
@click.option(
    "--run",
    "runs",
    multiple=True,
    metavar="RUN",
    help="the only run in which the device may take part; may be repeated  [default: every run, or "
    "those of its groups]",
)
@click.option(
    "--host",
    metavar="HOST",
    help="name or address at which the device reaches this machine  [default: the address on "
    "which the coordinator listens or listened last, or else this machine's in its network]",
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
    help="lifetime of a token: 90s, 30m, 1h, 7d; at most 90d",
)
@click.option(
    "--phone", is_flag=True, help="print a code for a phone to scan (coordinator start --phones)"
)
@PKI
@FORMAT
def enroll(name: str | None, source: Path | None, pki: str, form: str, **options: Any) -> None:
    """Create a token that enrols one device as NAME.

    The token works once, with `edge-agent join --token-file` or in a phone's browser. The
    certificate authority is created if there is none. With --from and --out, create the tokens of a
    list of devices: all or none.
    """
    with print_errors("enroll"):
        from coordinator.access.configured_authority import (
            enrol_devices,
            find_enrolment_address,
            open_authority,
        )
        from coordinator.access.enrolment_list import (
            Device,
            parse_names,
            parse_runs,
            parse_seconds,
            read_devices,
        )
        from coordinator.phones.defaults import FACT
        from coordinator.phones.phone_code import find_host
        from coordinator.settings.service_tables import Broker

        if (name is None) == (source is None) or (source is None) != (options["out"] is None):
            raise UsageError("expected either NAME, or --from FILE and --out FILE")
        for flag, column in (("group", "groups"), ("run", "runs")):
            if source is not None and options[column]:
                raise UsageError(f"--{flag}: write the {column} into the column {column} of --from")
        if source is not None and options["phone"]:
            raise UsageError(
                "--phone: expected NAME instead of --from, since each phone scans its own"
            )
        if source is None and options["skip_enrolled"]:
            raise UsageError("--skip-enrolled: expected --from FILE instead of NAME")
        seconds, groups = parse_seconds(options["valid"]), parse_names("group", options["groups"])
        devices = (
            [Device(name or "", seconds, groups, parse_runs(options["runs"]))]
            if source is None
            else read_devices(source, seconds)
        )
        with closing(open_authority(Broker(pki=pki))) as authority:
            if options["skip_enrolled"] and not (devices := select_new(authority, devices)):
                none = {"devices": 0, "out": None}
                print_result(none, form, lambda _: "wrote no tokens: no device is new")
                return
            page = authority.registry.get_fact(FACT) if options["phone"] else ""
            host = find_host(page, options["host"]) if options["phone"] else options["host"]
            address = find_enrolment_address(authority, host, options["port"])
            tokens = enrol_devices(authority, devices, address, options["out"])
        if source is None:
            if options["phone"]:
                print_code(tokens[0], page, form, options["valid"])
            else:
                print_token(tokens[0], form, options["valid"])
            return
        found = {"devices": len(tokens), "out": str(options["out"])}
        print_result(found, form, lambda _: f"wrote {len(tokens)} tokens to {options['out']}")
        if form == "text":
            print_place(tokens[0], "The devices")


def select_new(authority: Authority, devices: Sequence[Device]) -> list[Device]:
    """Return the devices that never had a certificate, and say how many others there are."""
    known = {one.name for one in authority.registry.list_certificates()}
    found = [one for one in devices if one.name not in known]
    click.echo(f"skipped {len(devices) - len(found)} of {len(devices)} devices", err=True)
    return found


def print_token(token: Token, form: str, valid: str) -> None:
    """Print the token of one device. valid: its lifetime, in words."""
    print_result(describe_token(token), form, lambda _: str(token))
    if form == "text":
        click.echo(
            f"On the device, run `edge-agent join --token-file -` within {valid} and paste the "
            "line above.",
            err=True,
        )
        print_place(token, "The device")


def print_place(token: Token, who: str) -> None:
    """Say where devices will enrol. who: "The device" or "The devices"."""
    place = f"[{token.host}]" if ":" in token.host else token.host
    click.echo(
        f"{who} will enrol at {place}:{token.port}, where the coordinator must listen "
        "(coordinator start --tls --listen ADDRESS); --host and --port name another address.",
        err=True,
    )


def print_code(token: Token, page: str, form: str, valid: str) -> None:
    """Print the code with which one phone joins. page: its address, as in the registry."""
    from coordinator.phones.phone_code import draw_code, format_page_url

    url = format_page_url(page, token)
    print_result({**describe_token(token), "url": url}, form, lambda _: f"{draw_code(url)}\n{url}")
    if form == "text":
        click.echo(
            f"Scan the code with the phone within {valid}, or open the address there. The "
            "coordinator must be running (coordinator start --phones).",
            err=True,
        )


def describe_token(token: Token) -> dict[str, Any]:
    found = {"name": token.name, "token": str(token), "host": token.host, "port": token.port}
    return {**found, "fingerprint": token.fingerprint.hex()}
