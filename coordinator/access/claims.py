"""Let a batch of devices claim their certificates with one shared secret.

A claim allows nothing but one exchange: a device sends a request with a key of its own and its
serial number, and gets the certificate of the name that the operator's list has for this number,
unless it was claimed before. A claim is limited in time and in number, and can be revoked.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from coordinator.access.certificate_authority import Authority
from coordinator.access.certificate_files import hash_public_key, read_agent_name, read_request
from coordinator.access.certificate_registry import Registry, hash_secret
from coordinator.access.configured_authority import open_authority
from coordinator.access.enrolment_list import Device, parse_names
from coordinator.audit_log import Actor
from coordinator.settings.service_tables import Broker
from federated.errors import ConfigError, Refused, Unknown
from federated.wire.enrolment_token import SECRET, Token

__all__ = [
    "Claim",
    "Claimed",
    "Terms",
    "add_claim",
    "claim",
    "list_claimed",
    "list_claims",
    "revoke_claim",
]


@dataclass(frozen=True)
class Terms:
    """The terms of a claim.

    batch: its name.
    valid: lifetime, seconds.
    most: number of devices that may use it.
    """

    batch: str
    valid: float
    most: int


@dataclass(frozen=True)
class Claim:
    """A claim in the registry.

    batch: its name.
    until: when it expires, seconds since 1970.
    most: number of devices that may use it.
    revoked: whether it was revoked.
    devices: number of devices in its list.
    claimed: number of these that have used it.
    """

    batch: str
    until: float
    most: int
    revoked: bool
    devices: int
    claimed: int


@dataclass(frozen=True)
class Claimed:
    """A device in the list of a claim.

    device: its serial number.
    name: of its agent.
    at: when it claimed its certificate, seconds since 1970; None before.
    """

    device: str
    name: str
    at: float | None


def add_claim(
    authority: Authority,
    terms: Terms,
    devices: Sequence[Device],
    address: tuple[str, int],
    by: Actor | None = None,
) -> Token:
    """Let each of the devices claim its certificate, at an address (host and port) with the
    returned token. Raises UsageError for an invalid name, ConfigError for a device that has a
    certificate or a batch that exists, StoreError.

    by: who asks; None: the user of this process.
    """
    (batch,) = parse_names("claim", [terms.batch])
    authority.add_hosts([address[0]])
    token = Token(batch, *address, secrets.token_bytes(SECRET), authority.fingerprint, claim=True)
    registry, now = authority.registry, time.time()
    with registry.transaction():
        if registry.read("select 1 from claims where batch = ?", batch):
            raise ConfigError(f"claim '{batch}' exists already: choose another name")
        check_serials(devices)
        registry.change(
            "insert into claims values (?, ?, ?, ?, null)",
            hash_secret(token.secret),
            batch,
            now + terms.valid,
            terms.most,
        )
        for one in devices:
            authority.check_new(one, now)
            registry.change(
                "insert into claimable (batch, device, name) values (?, ?, ?)",
                batch,
                one.serial,
                one.name,
            )
        registry.record(by, f"allow claim {batch}", [one.name for one in devices])
        authority.place(devices, by)
    return token


def check_serials(devices: Sequence[Device]) -> None:
    """Raise ConfigError for a serial number that two devices have."""
    found = dict[str, Device]()
    for one in devices:
        if (other := found.setdefault(one.serial, one)) is not one:
            raise ConfigError(
                f"{one.source}: expected a serial number of its own, found '{one.serial}', which "
                f"'{other.name}' has, too"
            )


def claim(
    authority: Authority, secret: bytes, request: str, place: str, now: float | None = None
) -> str:
    """Return the certificate (PEM) of the device whose serial number and key a request has. Raises
    Refused.

    place: of the device, for the audit log.
    """
    asked, now = read_request(request), time.time() if now is None else now
    device, key, registry = read_agent_name(asked), hash_public_key(asked), authority.registry
    with registry.transaction():
        batch = check_claim(registry, secret, now)
        rows = registry.read(
            "select name, key, serial from claimable where batch = ? and device = ?", batch, device
        )
        if not rows:
            raise Refused(
                f"the list of claim '{batch}' has no device with the serial number '{device}'"
            )
        name, used, serial = rows[0]
        if serial:
            known = registry.find(serial)
            if known is None or known.revoked is not None or not hmac.compare_digest(used, key):
                raise Refused(
                    f"the device '{device}' claimed its certificate already; if another one did, "
                    f"revoke it at once (coordinator revoke {name}), and enrol this one with a "
                    f"token (coordinator enroll {name})"
                )
            if known.ends <= now:
                raise Refused(
                    f"the certificate of '{name}' expired: enrol this device with a token "
                    f"(coordinator enroll {name})"
                )
            return known.pem
        authority.refuse_second(name, now)
        check_number(registry, batch)
        made = authority.admit(name, asked)
        registry.change(
            "update claimable set key = ?, serial = ?, at = ? where batch = ? and device = ?",
            key,
            made.serial,
            now,
            batch,
            device,
        )
        registry.record(Actor(f"device {device}", "", place), f"use claim {batch}", [name])
    return made.pem


def check_claim(registry: Registry, secret: bytes, now: float) -> str:
    """Return the batch of a claim that is valid. Raises Refused."""
    rows = registry.read(
        "select batch, until, revoked from claims where hash = ?", hash_secret(secret)
    )
    if not rows:
        raise Refused("unknown claim: another coordinator issued it (coordinator claim)")
    batch, until, revoked = rows[0]
    if revoked is not None:
        raise Refused(f"the claim '{batch}' was revoked")
    if now > until:
        ended = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(until))
        raise Refused(f"the claim '{batch}' expired at {ended}")
    return str(batch)


def check_number(registry: Registry, batch: str) -> None:
    """Raise Refused if as many devices as may have used a claim."""
    query = "select most, (select count(*) from claimable where batch = ? and serial <> '')"
    ((most, used),) = registry.read(f"{query} from claims where batch = ?", batch, batch)
    if used >= most:
        raise Refused(f"the claim '{batch}' was used by {used} devices, as many as may use it")


def revoke_claim(wanted: Broker, batch: str, by: Actor | None = None) -> None:
    """Let no further device use a claim. Raises as `open_authority`, and Unknown.

    by: who asks; None: the user of this process.
    """
    with closing(open_authority(wanted, create=False)) as authority:
        registry = authority.registry
        with registry.transaction():
            check_batch(registry, batch)
            registry.change(
                "update claims set revoked = ? where batch = ? and revoked is null",
                time.time(),
                batch,
            )
            registry.record(by, "revoke claim", [batch])


def list_claims(registry: Registry) -> list[Claim]:
    """Return all claims, by name."""
    rows = registry.read(
        "select claims.batch, until, most, revoked is not null, count(device), "
        "sum(serial <> '') from claims left join claimable on claimable.batch = claims.batch "
        "group by claims.batch order by claims.batch"
    )
    return [
        Claim(batch, until, most, bool(revoked), devices, claimed or 0)
        for batch, until, most, revoked, devices, claimed in rows
    ]


def list_claimed(registry: Registry, batch: str) -> list[Claimed]:
    """Return the devices of a claim, by name. Raises Unknown."""
    check_batch(registry, batch)
    query = "select device, name, at from claimable where batch = ? order by name"
    return [Claimed(*row) for row in registry.read(query, batch)]


def check_batch(registry: Registry, batch: str) -> None:
    known = {one.batch for one in list_claims(registry)}
    if batch not in known:
        raise Unknown("claim", batch, known)
