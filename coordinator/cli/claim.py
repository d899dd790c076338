"""`coordinator claim BATCH`: let a batch of devices claim their certificates with one token."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.enroll import print_place
from coordinator.cli.options import FILE, PKI, print_errors
from federated.errors import UsageError, require_extra
from federated.runtime.console import FORMAT, print_result
from federated.wire.enrolment_token import PORT

if TYPE_CHECKING:
    from coordinator.access.claims import Claim, Claimed

__all__ = ["claim"]


@click.command()
@click.argument("batch", required=False)
@click.option(
    "--from",
    "source",
    type=FILE,
    metavar="FILE",
    help="CSV file of the devices, with the column name, and optionally serial (by default the "
    "name), groups and runs (separated by spaces)",
)
@click.option(
    "--valid",
    metavar="TIME",
    help="lifetime of the token: 90s, 30m, 1h, 7d; at most 90d  [default: 7d]",
)
@click.option(
    "--most",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="number of devices that may use the token  [default: all of the list]",
)
@click.option(
    "--host",
    metavar="HOST",
    help="name or address at which the devices reach this machine  [default: the address on which "
    "the coordinator listens or listened last, or else this machine's in its network]",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help=f"port on which devices enrol  [default: that of the last run, or else {PORT}]",
)
@click.option("--off", is_flag=True, help="revoke the token: no further device may use it")
@PKI
@FORMAT
def claim(batch: str | None, source: Path | None, pki: str, form: str, **options: Any) -> None:
    """Let the devices of BATCH claim certificates with a token.

    The token is the same for all devices of the batch, such as in the image that they are flashed
    with (`edge-agent join --token-file`). Each gets the certificate of its line in the list, once,
    by its serial number. Without --from, show who has used the token, or list all batches.
    """
    with print_errors("claim"):
        with require_extra("the certificate authority", "secure"):
            from coordinator.access import claims
        from coordinator.access.configured_authority import find_enrolment_address, open_authority
        from coordinator.access.enrolment_list import CLAIMS, parse_seconds, read_devices
        from coordinator.settings.service_tables import Broker

        wanted = Broker(pki=pki)
        if batch is None and (source is not None or options["off"]):
            raise UsageError("expected BATCH")
        for flag in ("valid", "most", "host", "port"):
            if source is None and options[flag] is not None:
                raise UsageError(f"--{flag} is for a new claim: add --from FILE")
        if batch is not None and source is not None:
            if options["off"]:
                raise UsageError("--from and --off cannot be combined: use one of them")
            seconds = parse_seconds(options["valid"] or "7d")
            devices = read_devices(source, seconds, CLAIMS)
            terms = claims.Terms(batch, seconds, options["most"] or len(devices))
            with closing(open_authority(wanted)) as authority:
                address = find_enrolment_address(authority, options["host"], options["port"])
                token = claims.add_claim(authority, terms, devices, address)
            found = {"batch": batch, "token": str(token), "devices": len(devices)}
            print_result(found, form, lambda _: str(token))
            if form == "text":
                print_place(token, "The devices")
            return
        if batch is not None and options["off"]:
            claims.revoke_claim(wanted, batch)
            print_result({"batch": batch, "revoked": True}, form)
            return
        with closing(open_authority(wanted, create=False)) as authority:
            if batch is None:
                show_claims(claims.list_claims(authority.registry), form)
            else:
                show_devices(claims.list_claimed(authority.registry, batch), form)


def show_claims(found: list[Claim], form: str) -> None:
    """Print one line for each claim."""
    now = time.time()
    lines = [
        f"{one.batch:<20} {one.claimed} of {one.devices} devices, at most {one.most}  "
        f"{describe_validity(one, now)}"
        for one in found
    ]
    text = "\n".join(lines) or "no claims"
    print_result({"claims": [asdict(one) for one in found]}, form, lambda _: text)


def describe_validity(one: Claim, now: float) -> str:
    if one.revoked:
        return "revoked"
    return f"{'expired' if one.until < now else 'valid until'} {format_time(one.until)}"


def show_devices(found: list[Claimed], form: str) -> None:
    """Print one line for each device of a claim."""
    lines = [
        f"{one.name:<20} {one.device:<20} "
        f"{'not claimed' if one.at is None else f'claimed {format_time(one.at)}'}"
        for one in found
    ]
    print_result({"devices": [asdict(one) for one in found]}, form, lambda _: "\n".join(lines))


def format_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))
