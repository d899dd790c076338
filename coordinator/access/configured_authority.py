"""Open the certificate authority of a run's configuration (the folder `broker.pki`, or the default
one), let devices enrol, change their groups and rights, and revoke certificates.

This module imports the package `cryptography` only when it opens an authority, so that commands
which do not need it start fast.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.access.certificate_registry import REGISTRY, Registry
from coordinator.access.enrolment_list import Device, parse_names, parse_runs, write_tokens
from coordinator.access.run_rights import Subject, list_excluded, list_limits, list_runs, set_right
from coordinator.audit_log import Actor
from coordinator.broker.local_addresses import find_own_address
from coordinator.settings.service_tables import Broker
from federated.errors import StoreError, Unknown, UsageError, require_extra
from federated.wire import topics
from federated.wire.enrolment_token import PORT, Token

if TYPE_CHECKING:
    from coordinator.access.certificate_authority import Authority

__all__ = [
    "change_group",
    "change_rights",
    "enrol_devices",
    "find_default_folder",
    "find_enrolment_address",
    "find_members",
    "get_group_reader",
    "open_authority",
    "read_excluded",
    "read_limits",
    "read_runs",
    "register_devices",
    "revoke_agents",
]


def find_default_folder() -> Path:
    """Return the default folder of the authority. It is in the user's data folder, not in a folder
    of runs, since runs share the authority.
    """
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local/share") / "espalier" / "pki"


def open_authority(wanted: Broker, *, create: bool = True) -> Authority:
    """Open the authority that the configuration names. Raises MissingExtra, ConfigError,
    StoreError.

    create: create it if there is none.
    """
    with require_extra("the certificate authority", "secure"):
        from coordinator.access.certificate_authority import Authority
        from coordinator.access.outside_authority import read_outside_authority
    folder = Path(wanted.pki) if wanted.pki else find_default_folder()
    if not create and not (folder / "root.pem").exists():
        raise StoreError(f"no certificate authority in {folder}: choose its folder with --pki")
    return Authority(folder, wanted.hosts, outside=read_outside_authority(wanted))


def find_enrolment_address(
    authority: Authority, host: str | None, port: int | None
) -> tuple[str, int]:
    """Return where devices enrol: the given host and port, or else those of the last run."""
    if not host:
        # not bound here: where the coordinator listens, or listened last
        host = authority.registry.get_fact("listen") or "0.0.0.0"  # noqa: S104
        if host in ("0.0.0.0", "::"):  # noqa: S104
            host = find_own_address(host)
    return host.strip("[]"), port or int(authority.registry.get_fact("enrolment") or PORT)


def enrol_devices(
    authority: Authority,
    devices: Sequence[Device],
    address: tuple[str, int],
    out: Path | None = None,
    by: Actor | None = None,
) -> list[Token]:
    """Let devices enrol at an address (host and port) with the returned tokens: all, or none.
    Raises UsageError, ConfigError, StoreError.

    out: new file to write the tokens to, which is deleted if no device may enrol. by: who asks;
    None: the user of this process.
    """
    now, tokens = time.time(), authority.make_tokens(devices, *address)
    if out is not None:
        write_tokens(out, devices, tokens, now)
    try:
        authority.add_tokens(devices, tokens, now, by)
    except BaseException:
        if out is not None:
            out.unlink()
        raise
    return tokens


def find_members(wanted: Broker, group: str) -> tuple[str, ...]:
    """Return the devices in a group. Raises as `open_authority`, and Unknown."""
    with closing(open_authority(wanted, create=False)) as authority:
        groups = authority.registry.list_groups()
    if found := tuple(name for name, of in groups.items() if group in of):
        return found
    raise Unknown("group", group, {one for of in groups.values() for one in of})


def find_groups(wanted: Broker, name: str) -> tuple[str, ...]:
    """Return the groups of a device. Raises StoreError, also if there is no authority."""
    path = Path(wanted.pki or find_default_folder()) / REGISTRY
    if not path.is_file():
        raise StoreError(
            f"no certificate authority in {path.parent}, which keeps the groups of devices: choose "
            "its folder with broker.pki"
        )
    with closing(Registry(path)) as registry:
        return registry.find_groups(name)


def get_group_reader(wanted: Broker) -> Callable[[str], tuple[str, ...]] | None:
    """Return `find_groups` for a run; None without tls, where any device can use any name."""
    return partial(find_groups, wanted) if wanted.tls else None


def change_group(
    wanted: Broker, group: str, names: Sequence[str], *, remove: bool, by: Actor | None = None
) -> None:
    """Put devices into a group, or remove them from it. Raises as `open_authority`, and Unknown for
    a device that was never enrolled.

    by: who asks; None: the user of this process.
    """
    parse_names("group", [group])
    with closing(open_authority(wanted, create=False)) as authority:
        registry = authority.registry
        enrolled = registry.list_names()
        for name in names:
            if name not in enrolled:
                raise Unknown("agent", name, enrolled)
        with registry.transaction():
            groups = registry.list_groups()
            for name in names:
                kept = set(groups.get(name, ())) - {group}
                registry.set_groups(name, kept if remove else kept | {group})
            what = f"remove from {group}" if remove else f"add to {group}"
            registry.record(by, what, names)


def change_rights(
    wanted: Broker,
    subjects: Sequence[Subject],
    run: str | None,
    *,
    withdraw: bool = False,
    by: Actor | None = None,
) -> dict[Subject, tuple[str, ...] | None]:
    """Grant devices and groups a run, or withdraw it. Return the runs of each, None without a
    limit. Raises as `open_authority`, Unknown as `check_subjects`, and UsageError to withdraw a run
    from what has no limit.

    run: None to remove the limit. by: who asks; None: the user of this process.
    """
    parse_runs([] if run is None else [run])
    with closing(open_authority(wanted, create=False)) as authority:
        registry = authority.registry
        check_subjects(registry, subjects)
        with registry.transaction():
            limits = list_limits(registry)
            for one in subjects:
                if withdraw and one not in limits:
                    raise UsageError(
                        f"{one} may take part in every run: grant it the runs that it keeps first "
                        "(coordinator grant)"
                    )
                set_right(registry, one, run, withdraw=withdraw)
            what = "withdraw" if withdraw else "grant"
            named = "every run" if run is None else f"run {run}"
            registry.record(by, f"{what} {named}", [str(one) for one in subjects])
            limits = list_limits(registry)
    return {one: limits.get(one) for one in subjects}


def check_subjects(registry: Registry, subjects: Iterable[Subject]) -> None:
    """Raise Unknown for a device that was never enrolled, or a group without a member, unless it
    has a limit.
    """
    known = {Subject("agent", name) for name in registry.list_names()}
    known |= {Subject("group", one) for of in registry.list_groups().values() for one in of}
    known |= list_limits(registry).keys()
    for one in subjects:
        if one not in known:
            names = (other.name for other in known if other.kind == one.kind)
            raise Unknown(one.kind, one.name, names)


def read_runs(wanted: Broker) -> list[str]:
    """Return the runs that used the authority, or that any device or group was granted. Raises as
    `open_authority`.
    """
    with closing(open_authority(wanted, create=False)) as authority:
        return list_runs(authority.registry)


def read_limits(wanted: Broker) -> dict[Subject, tuple[str, ...]]:
    """Return the runs of all devices and groups that have a limit of their own. Raises as
    `open_authority`.
    """
    with closing(open_authority(wanted, create=False)) as authority:
        return list_limits(authority.registry)


def read_excluded(settings: Mapping[str, Any], run: str) -> list[str]:
    """Return the devices that may not take part in a run with these settings; none if the run has
    no authority. Raises StoreError.
    """
    broker, phones = settings.get("broker") or {}, settings.get("phones") or {}
    path = Path(broker.get("pki") or find_default_folder()) / REGISTRY
    if not (broker.get("tls") or phones.get("listen")) or not path.is_file():
        return []
    with closing(Registry(path)) as registry:
        return sorted(list_excluded(registry, run))


def register_devices(wanted: Broker, devices: Sequence[Device], by: Actor | None = None) -> None:
    """Let devices take part that have certificates of another authority, with these names. Raises
    as `open_authority`.

    by: who asks; None: the user of this process.
    """
    with closing(open_authority(wanted)) as authority, authority.registry.transaction():
        for one in devices:
            topics.command("any", one.name)  # checks the name
            authority.registry.register(one.name)
        authority.registry.record(by, "register", [one.name for one in devices])
        authority.place(devices, by)


def revoke_agents(
    wanted: Broker, names: Iterable[str], by: Actor | None = None
) -> tuple[dict[str, int], list[str]]:
    """Revoke the certificates and unused tokens of agents. Return agent -> number of its
    certificates that were valid, and the names that have neither. Raises as `open_authority`.

    by: who asks; None: the user of this process.
    """
    with closing(open_authority(wanted, create=False)) as authority:
        enrolled = authority.registry.list_names()
        known = [name for name in dict.fromkeys(names) if name in enrolled]
        counts = authority.revoke_all(known, by=by) if known else {}
    return counts, sorted(set(names) - enrolled)
