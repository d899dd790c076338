"""Set up the broker of a run: use the configured one, or start one that ends with the run.

With --tls a thread checks every second what `coordinator enroll`, `coordinator grant` and
`coordinator revoke` changed in the authority's folder, and updates the broker: a revoked agent
loses its rights at once and its connections are closed. Every hour it renews the certificates that
expire soon. A broker that this process started is restarted when it crashes.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from coordinator.access.broker_address import name_entry
from coordinator.access.configured_authority import open_authority
from coordinator.access.enrolment_server_process import EnrolmentProcess
from coordinator.access.run_rights import add_run, list_excluded
from coordinator.broker import local_broker as brokers
from coordinator.broker.local_addresses import check_exposure
from coordinator.broker.mosquitto_config import Rights, limit_packets
from coordinator.settings.service_tables import Broker as Wanted
from federated.errors import ConfigError
from federated.runtime.console import Say
from federated.runtime.server_process import Poller
from federated.wire.link import Link
from federated.wire.mqtt_address import (
    PORTS,
    MqttAddress,
    add_credentials,
    format_url,
    parse_mqtt_address,
)

if TYPE_CHECKING:
    from coordinator.access.certificate_authority import Authority

__all__ = [
    "EXCLUDED",
    "REVOKED",
    "SUSPENDED",
    "AuthorityWatcher",
    "BrokerAccess",
    "open_broker_access",
]

log = logging.getLogger(__name__)

REVOKED = "its certificate was revoked"
SUSPENDED = "it flooded the coordinator"
EXCLUDED = "it has no right to this run"
SUSPENSION = 600.0  # seconds
LAST_LISTS = "last-crl.pem"  # of another authority, in the folder of the own one
NAMED = 10  # agents that a message names
RENEWAL_CHECK = 3600.0  # seconds between checks for certificates that expire soon
HAND_OVER = (
    "the broker's certificate or the revocation list changed, and the broker is external: install "
    "both before the old ones expire, or it rejects every client (coordinator authority "
    "--for-broker DIR)"
)

NEW_RIGHTS = (
    "the rights of devices changed, and the broker is external: install its new access control "
    "list (coordinator authority --for-broker DIR); the coordinator applies the rights already"
)


@dataclass
class BrokerAccess:
    """A coordinator's access to a broker.

    address: of the broker, with the coordinator's credentials.
    barred: agents whose certificates were all revoked; their messages must be ignored.
    excluded: agents that may not take part in the run (coordinator.access.run_rights).
    names: the only agents that may take part, if another authority certifies them; None: all.
    suspended: agents that flooded the coordinator -> end of their suspension, monotonic seconds.
    link: the coordinator's link; agents that fill it are suspended.
    by_name_only: whether the broker sends no retained message to a subscription with a wildcard.
    """

    address: str
    barred: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    names: frozenset[str] | None = None
    suspended: dict[str, float] = field(default_factory=dict)
    link: Link | None = None
    by_name_only: bool = False

    def suspend(self, name: str) -> None:
        """Take an agent's rights away for SUSPENSION seconds, if the broker was started here."""
        self.suspended[name] = time.monotonic() + SUSPENSION

    def lacks(self, name: str) -> bool:
        """Return True for an agent that may not take part because it is not registered."""
        return self.names is not None and name not in self.names

    def list_shut_out(self) -> dict[str, frozenset[str]]:
        """Return the agents that may not take part in the run at present, by reason."""
        suspended = self.list_suspended() - self.barred
        excluded = self.excluded - self.barred - suspended
        return {REVOKED: self.barred, SUSPENDED: suspended, EXCLUDED: excluded}

    def list_suspended(self) -> frozenset[str]:
        """Return the agents that have no rights at present.

        Any thread may ask. The one that folds may wait for the broker, which a flood keeps busy
        until its sender is suspended.
        """
        for name in self.link.take_flooders() if self.link is not None else ():
            self.suspend(name)
        now = time.monotonic()
        names = frozenset(name for name, until in list(self.suspended.items()) if now < until)
        if self.link is not None:
            self.link.block(names | self.barred)
        return names


class Applied(NamedTuple):
    """What a broker has.

    rights: of its clients.
    revoked: serial number and name of each revoked certificate; no name if another authority
        issued it.
    stamp: when the files that the broker reads were last written.
    """

    rights: Rights
    revoked: frozenset[tuple[str, str]]
    stamp: tuple[int, ...]


class AuthorityWatcher:
    """Applies changes in an authority's folder to the broker.

    broker: the broker that this process started; None for an external one. run: in which devices
    take part. clock: Unix time, which advances while the machine is suspended.
    """

    def __init__(
        self,
        authority: Authority,
        access: BrokerAccess,
        broker: brokers.Broker | None,
        clock: Callable[[], float] = time.time,
        run: str = "",
    ) -> None:
        self._authority, self._access, self._broker, self._clock = authority, access, broker, clock
        self._run = run
        self._checked = clock()
        if broker is None and authority.renewed:
            log.warning("%s", HAND_OVER)
        self._applied = self._read_state()  # what the broker has
        if broker is not None and self._applied.rights != Rights():
            broker.reload(self._applied.rights)

    def poll(self) -> None:
        """Restart a crashed broker, load new files, and disconnect newly suspended agents and all
        agents with a newly revoked certificate, also if they have enrolled again since.

        What fails is tried again at the next poll. Raises EspalierError, OSError.
        """
        current = self._read_state()  # the coordinator ignores an agent before the broker does
        if self._broker is not None:
            self._broker.restart_if_dead()
        if current != self._applied:
            self._apply(current, self._applied)
            self._applied = current
        # abs: the system clock may be set back
        if abs((now := self._clock()) - self._checked) > RENEWAL_CHECK:
            # the next poll loads what is renewed here
            self._authority.renew_own(datetime.fromtimestamp(now, UTC))
            self._checked = now
        if self._authority.outside is not None:
            self._authority.outside.warn_of_expiry(datetime.fromtimestamp(now, UTC))

    def _read_state(self) -> Applied:
        """Read what the broker should have, and tell the coordinator."""
        access, registry = self._access, self._authority.registry
        access.barred, access.excluded = registry.list_barred(), list_excluded(registry, self._run)
        revoked = registry.list_revocations()
        if self._authority.outside is not None:
            access.names = registry.list_names()
            revoked |= {(serial, "") for serial in self._authority.outside.refresh()}
        stamp = self._read_file_times()
        # an external broker has its own files, which this process cannot change for ten minutes
        suspended = access.list_suspended() if self._broker is not None else frozenset[str]()
        excluded = dict.fromkeys(access.excluded, (self._run,))
        return Applied(Rights(access.barred | suspended, excluded, access.names), revoked, stamp)

    def _apply(self, state: Applied, before: Applied) -> None:
        new = state.rights.barred - before.rights.barred
        for _, name in state.revoked - before.revoked:
            # a list of revoked certificates has no names: those that are valid reconnect
            new |= {name} if name else state.rights.names or frozenset()
        if self._broker is not None:
            self._broker.reload(state.rights)
            if new:
                shown = ", ".join(sorted(new)[:NAMED])
                more = f" and {len(new) - NAMED} more" if len(new) > NAMED else ""
                log.warning("revoked or suspended: %s%s; closing their connections", shown, more)
                self._broker.disconnect(new)
        elif new:
            log.warning(
                "revoked: %s; the broker is external: install the new revocation list "
                "(coordinator authority --for-broker DIR)",
                ", ".join(sorted(new)),
            )
        elif state.rights.excluded != before.rights.excluded:
            log.warning("%s", NEW_RIGHTS)
        else:
            log.warning("%s", HAND_OVER)

    def _read_file_times(self) -> tuple[int, ...]:
        """Return when the files that the broker reads were last written."""
        authority = self._authority
        files = [authority.crl, authority.server]
        if authority.outside is not None:
            served = authority.outside.served
            files += [served.ca, served.certificate, served.crl]
        return tuple(path.stat().st_mtime_ns for path in files)


@contextmanager
def open_broker_access(
    wanted: Wanted, folder: Path, say: Say, chunk: int = 0
) -> Iterator[BrokerAccess]:
    """Use the configured broker, or start one for the lifetime of the context. With `tls`, also
    open the authority and serve enrolment.

    folder: of the run, called as it. chunk: `wire.chunk`, for the largest packet that the started
    broker accepts.
    """
    most = limit_packets(chunk)
    if wanted.tls:
        with _open_with_tls(wanted, folder, say, most) as access:
            yield access
        return
    if wanted.url:
        yield BrokerAccess(wanted.url)
        return
    passwords = Path(wanted.passwords) if wanted.passwords else None
    port = PORTS["mqtt"] if wanted.port is None else wanted.port
    with ExitStack() as stack:
        broker = stack.enter_context(
            brokers.start(wanted.listen, port, wanted.kind, folder / "broker", passwords, most)
        )
        stack.callback(Poller("broker", broker.restart_if_dead).close)
        address = f"mqtt://USER:PASSWORD@{broker.address}" if passwords else broker.address
        say(
            f"started {broker.name} at {broker.address}; agents join with: edge-agent "
            f"join --broker {address}"
        )
        yield BrokerAccess(broker.url)


@contextmanager
def _open_with_tls(wanted: Wanted, folder: Path, say: Say, most: int) -> Iterator[BrokerAccess]:
    """most: bytes of the largest packet."""
    if wanted.passwords:
        raise ConfigError(
            "broker.tls and broker.passwords cannot be combined: devices are identified by "
            "certificates with tls, and by users with passwords"
        )
    check_exposure(wanted.listen, known=True)
    with ExitStack() as stack:
        authority = open_authority(wanted)
        stack.callback(authority.close)
        if authority.outside is not None:
            copies = folder / "broker" / "certificates"
            stack.callback(shutil.rmtree, copies, ignore_errors=True)  # with the broker's key
            authority.outside.install(copies, authority.folder / LAST_LISTS)
        if wanted.url:
            address = _add_certificate(parse_mqtt_address(wanted.url), authority)
            broker, public, access = None, str(address), BrokerAccess(format_url(address))
        else:
            broker = _start_with_tls(wanted, authority, folder, most, stack)
            public, access = broker.address.rpartition(":")[2], BrokerAccess(broker.url)
        if authority.outside is None:
            advice = _serve_enrolment(wanted, authority, public, stack)
        else:
            entry = parse_mqtt_address(access.address)
            authority.registry.set_fact(name_entry(wanted), f"{entry.host}:{entry.port}")
            advice = f"devices need a certificate of {wanted.ca}, and: coordinator register NAME"
        add_run(authority.registry, folder.name)
        watcher = AuthorityWatcher(authority, access, broker, run=folder.name)
        stack.callback(Poller("broker access", watcher.poll).close)
        what = (
            f"started {broker.name} at {broker.address}"
            if broker
            else f"using the broker at {public} as '{authority.user}'"
        )
        say(f"{what}; {advice}")
        yield access


def _add_certificate(address: MqttAddress, authority: Authority) -> MqttAddress:
    """Return the address of an existing broker, with the coordinator's certificate."""
    if not address.tls:
        raise ConfigError(
            "broker.tls requires a broker with TLS: expected mqtts://HOST or wss://HOST, "
            f"found {address}"
        )
    return add_credentials(address, str(authority.ca), str(authority.coordinator))


def _start_with_tls(
    wanted: Wanted, authority: Authority, folder: Path, most: int, stack: ExitStack
) -> brokers.Broker:
    """Start a broker that requires certificates, until the stack closes."""
    # only names that clients compare with the certificate; nothing listens here
    authority.add_hosts([wanted.listen] if wanted.listen not in ("0.0.0.0", "::") else [])  # noqa: S104
    port = PORTS["mqtts"] if wanted.port is None else wanted.port
    return stack.enter_context(
        brokers.start(
            wanted.listen, port, wanted.kind, folder / "broker", authority.tls_files, most
        )
    )


def _serve_enrolment(wanted: Wanted, authority: Authority, public: str, stack: ExitStack) -> str:
    """Serve enrolment until the stack closes. Return how devices enrol, in words. public: the
    broker's address for devices.
    """
    enrolment = EnrolmentProcess(authority.folder, (wanted.listen, wanted.enrol), public)
    stack.callback(enrolment.close)
    stack.callback(Poller("enrolment", enrolment.restart_if_dead).close)
    authority.registry.set_fact("enrolment", str(enrolment.port))
    authority.registry.set_fact("listen", wanted.listen)
    return (
        f"devices enrol at port {enrolment.port}: coordinator enroll NAME prints a token for "
        "edge-agent join --token"
    )
