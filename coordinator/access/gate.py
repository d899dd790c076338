"""The way in, for as long as a run lasts: a broker, and where that asks for certificates, the
authority that gives and takes them.

With --tls a keeper looks every second at what `coordinator enroll` and `coordinator revoke` changed
in the authority's folder, and tells the broker: a revoked agent may do nothing at once, and its
connections are cut. Every hour it makes again what is soon over. A broker that was started here is
started again where it ended.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.access.authority_folder import default_folder, open_authority
from coordinator.broker import local as brokers
from coordinator.broker.addresses import check_exposure
from coordinator.broker.mosquitto import COORDINATOR
from coordinator.settings.services import Broker as Wanted
from federated.errors import ConfigError, EspalierError
from federated.runtime.console import Say
from federated.wire.address import PORTS, identified, parse_address, scheme_of, url

if TYPE_CHECKING:
    from coordinator.access.authority import Authority
    from coordinator.access.enrolment_server import Enrolment

__all__ = ["Gate", "Keeper", "Watch", "open_gate", "shown"]

log = logging.getLogger(__name__)

LOOK = 1.0  # seconds between two looks at the authority's folder
TEND = 3600.0  # seconds between two looks at what is soon over
HAND_OVER = (
    "the broker's certificate or the list of revoked ones is new, and the broker is not "
    "ours: give it both before the old ones end, or it lets "
    "nobody in (coordinator authority --for-broker DIR)"
)


class Gate:
    """What a coordinator needs of it. address: of the broker, with what lets the coordinator in."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.names: frozenset[str] = frozenset()

    def barred(self) -> frozenset[str]:
        """The agents whose certificates were all revoked: nothing that comes in their names is to
        be believed.
        """
        return self.names


class Watch:
    """Takes a look every second, from a thread of its own, until closed."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look, self._stop = look, threading.Event()
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(LOOK):
            try:
                self._look()
            except (EspalierError, OSError) as error:  # the next look may find it mended
                log.error("at the gate: %s", error)


class Keeper:
    """Looks after an authority's folder. broker: the one that was started here, or None. clock:
    Unix time, which goes on while a machine sleeps.
    """

    def __init__(
        self,
        authority: Authority,
        gate: Gate,
        broker: brokers.Broker | None,
        enrolment: Enrolment,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._authority, self._gate, self._broker, self._enrolment, self._clock = (
            authority,
            gate,
            broker,
            enrolment,
            clock,
        )
        self._tended = clock()
        if broker is None and authority.renewed:
            log.warning("%s", HAND_OVER)
        gate.names = authority.registry.barred()
        self._told = gate.names, self._seen()  # what the broker knows
        if broker is not None and gate.names:
            broker.reload(gate.names)

    def look(self) -> None:
        """One look: files that are new are read again, names that are barred since the last one are
        cut off; a broker that ended is started.

        What fails is done at the next look. Raises EspalierError, OSError.
        """
        names, stamp = self._authority.registry.barred(), self._seen()
        self._gate.names = names  # the coordinator refuses before the broker knows
        if self._broker is not None:
            self._broker.mend()
        if (names, stamp) != self._told:
            self._tell(names, names - self._told[0])
            self._told = names, stamp
        if abs((now := self._clock()) - self._tended) > TEND:  # a clock may be set back, too
            # what is new is told at the next look
            self._authority.tend(datetime.fromtimestamp(now, UTC))
            self._tended = now

    def _tell(self, names: frozenset[str], new: frozenset[str]) -> None:
        self._enrolment.reload()
        if self._broker is not None:
            self._broker.reload(names)
            if new:
                log.warning(
                    "revoked: %s; restarting the broker, which cuts its connections",
                    ", ".join(sorted(new)),
                )
                self._broker.restart()
        elif new:
            log.warning(
                "revoked: %s; the broker is not ours: give it the new list (coordinator "
                "authority --for-broker DIR)",
                ", ".join(sorted(new)),
            )
        else:
            log.warning("%s", HAND_OVER)

    def _seen(self) -> tuple[int, ...]:
        """When the files that others read were written."""
        return tuple(
            path.stat().st_mtime_ns for path in (self._authority.crl, self._authority.server)
        )


def shown(broker: str) -> str:
    """A broker's address with the coordinator's certificate, where one is asked for and the
    authority is this user's (or ESPALIER_BROKER__PKI).
    """
    if scheme_of(broker) not in PORTS:
        return broker  # only MQTT brokers ask for certificates
    address = parse_address(broker)
    folder = Path(os.environ.get("ESPALIER_BROKER__PKI") or default_folder())
    pem = folder / "coordinator.pem"
    if not address.tls or address.cert is not None or address.user is not None or not pem.is_file():
        return broker
    return url(identified(address, str(folder / "ca.pem"), str(pem)))


@contextmanager
def open_gate(wanted: Wanted, folder: Path, say: Say) -> Iterator[Gate]:
    """The broker that is named, or one started for as long as the context lasts; with `tls` also
    the authority, and where devices enrol.
    """
    if wanted.tls:
        with _secured(wanted, folder, say) as gate:
            yield gate
        return
    if wanted.url:
        yield Gate(wanted.url)
        return
    passwords = Path(wanted.passwords) if wanted.passwords else None
    port = PORTS["mqtt"] if wanted.port is None else wanted.port
    with ExitStack() as stack:
        broker = stack.enter_context(
            brokers.start(wanted.listen, port, wanted.kind, folder / "broker", passwords)
        )
        stack.callback(Watch(broker.mend).close)
        door = f"mqtt://USER:PASSWORD@{broker.address}" if passwords else broker.address
        say(
            f"started {broker.name} at {broker.address}; agents join by: edge-agent "
            f"join --broker {door}"
        )
        yield Gate(broker.url)


@contextmanager
def _secured(wanted: Wanted, folder: Path, say: Say) -> Iterator[Gate]:
    from coordinator.access.enrolment_server import Enrolment

    if wanted.passwords:
        raise ConfigError(
            "--tls knows devices by their certificates, --passwords by users: choose one of them"
        )
    check_exposure(wanted.listen, known=True)
    with ExitStack() as stack:
        authority = open_authority(wanted)
        stack.callback(authority.close)
        if wanted.url:
            address = parse_address(wanted.url)
            if not address.tls:
                raise ConfigError(
                    f"--tls needs a broker that speaks it: mqtts://HOST, found {address}"
                )
            address = identified(address, str(authority.ca), str(authority.coordinator))
            broker, told, gate = None, str(address), Gate(url(address))
        else:
            # compared, not bound
            authority.add_hosts([wanted.listen] if wanted.listen not in ("0.0.0.0", "::") else [])  # noqa: S104
            port = PORTS["mqtts"] if wanted.port is None else wanted.port
            broker = stack.enter_context(
                brokers.start(
                    wanted.listen, port, wanted.kind, folder / "broker", authority.secured
                )
            )
            told, gate = broker.address.rpartition(":")[2], Gate(broker.url)
        enrolment = Enrolment(authority, wanted.listen, wanted.enrol, lambda: told)
        stack.callback(enrolment.close)
        authority.registry.note("enrolment", str(enrolment.port))
        authority.registry.note("listen", wanted.listen)
        stack.callback(Watch(Keeper(authority, gate, broker, enrolment).look).close)
        what = (
            f"started {broker.name} at {broker.address}"
            if broker
            else f"using the broker at {told} as '{COORDINATOR}'"
        )
        say(
            f"{what}; devices enrol at port {enrolment.port}: coordinator enroll NAME "
            "prints a token for edge-agent join --token"
        )
        yield gate
