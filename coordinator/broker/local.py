"""A broker that runs for as long as its starter: mosquitto where it is installed, else the embedded
one.

The broker ends with the process that started it, even after `kill -9`: a shell between the two
holds a pipe to the starter, and ends the broker when the pipe closes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from coordinator.broker import embedded, mosquitto
from coordinator.broker import passwords as users
from coordinator.broker.addresses import check_exposure, free_port, reachable
from coordinator.broker.mosquitto import COORDINATOR, MAX_PACKET, Secured, find_mosquitto
from federated.errors import LinkError
from federated.runtime import files
from federated.wire.address import Address, parse_address, url
from federated.wire.links.paho_client import ClientSetup, connect, part

__all__ = ["Broker", "find_mosquitto", "start"]

log = logging.getLogger(__name__)

STARTING = 20.0  # seconds until a broker must answer
ENDING = 5.0  # seconds that it has to end by itself
SAVING = 60.0  # seconds that it has to write down what it keeps, where it is to come back
MQTT_3_1_1 = 4  # the protocol's number on the wire
RIGHTS = "rights.acl"
TAIL = 20  # lines of its log to show

# Runs the command, and ends it when standard input ends; SIGHUP, by which a broker reads its files
# again, is passed on. The pipe is read beside it so that the broker's own end is noticed, too; a
# signal interrupts waiting, and is no end.
GUARD = """exec 3<&0; "$@" </dev/null 3<&- & broker=$!
trap 'kill -HUP "$broker"' HUP
{ trap - HUP; cat <&3 >/dev/null; kill "$broker" 2>/dev/null; } &
while wait "$broker"; status=$?; kill -0 "$broker" 2>/dev/null; do :; done; exit $status"""


class Broker:
    """A running broker.

    kind: mosquitto or embedded. name: with its version, for people. address: for agents. url: for
    the coordinator, with its credentials.
    """

    def __init__(
        self, kind: str, name: str, address: str, url: str, log: Path, command: list[str]
    ) -> None:
        """Start it and wait until it answers. Raises LinkError with the end of its log."""
        self.kind, self.name, self.address, self.url, self.log = kind, name, address, url, log
        self._command = command
        self._process = self._started()

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Of the shell whose child is the broker."""
        return self._process.pid

    def reload(self, barred: Iterable[str] = ()) -> None:
        """Has mosquitto read its certificates, the list of revoked ones and the rights again; who
        is `barred` may do nothing any more.

        Connections stay, those of revoked certificates too: they may only do nothing. `restart`
        cuts them.
        """
        files.write(self.log.parent / RIGHTS, mosquitto.rights(COORDINATOR, barred).encode())
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGHUP)

    def restart(self) -> None:
        """Ends the broker and starts it again, with all that it keeps. Everybody is cut, and comes
        back who may.
        """
        self.stop(SAVING)
        self._process = self._started()

    def mend(self) -> None:
        """Starts it again where it ended by itself, or was ended by another. Raises LinkError where
        it does not start.
        """
        if (status := self._process.poll()) is not None:
            log.error(
                "%s ended with status %d; starting it again. Its log ended: %s",
                self.name,
                status,
                self._said(1) or "(empty)",
            )
            self.restart()

    def stop(self, patience: float = ENDING) -> None:
        """Ends the broker and waits for it; twice is fine."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        with contextlib.suppress(ProcessLookupError):  # what is left of its group
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as out:
            # A session of its own: Ctrl-C is for the coordinator, which has goodbyes to send.
            self._process = subprocess.Popen(  # noqa: S603  # nothing in it comes from elsewhere
                ["/bin/sh", "-c", GUARD, "guard", *self._command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            self._await()
        except BaseException:
            self.stop()
            raise
        return self._process

    def _await(self) -> None:
        """Returns once a client could connect. Raises LinkError with the end of the broker's log
        where none can.
        """
        version = MQTT_3_1_1 if self.kind == "embedded" else None
        setup = ClientSetup(parse_address(self.url), f"waiting-{secrets.token_hex(4)}")
        until = time.monotonic() + STARTING
        why = ""
        while time.monotonic() < until and self._process.poll() is None:
            try:
                greeting = connect(setup, timeout=5.0, version=version)
            except LinkError as error:
                why = str(error)
                time.sleep(0.05)
            else:
                part(greeting.client, greeting.protocol)
                return
        ended = self._process.poll()
        how = (
            f"ended with status {ended}"
            if ended is not None
            else f"did not answer within {STARTING:.0f} s ({why})"
        )
        raise LinkError(
            f"{self.name} {how}; its log ({self.log}) ends:\n{self._said(TAIL) or '(empty)'}"
        )

    def _said(self, lines: int) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace")[-1500:].strip().splitlines()[-lines:])


def start(
    listen: str = "127.0.0.1",
    port: int = 1883,
    kind: str = "auto",
    directory: Path | None = None,
    clients: Secured | Path | None = None,
    max_packet: int = MAX_PACKET,
) -> Broker:
    """Start a broker and wait until it answers.

    listen: an IP address or `localhost`; any but loopback needs `clients`.
    port: 0 for any free one.
    kind: mosquitto, embedded, or auto (mosquitto if it is installed).
    directory: for configuration, log and data; a temporary one by default.
    clients: how clients are identified: by certificates (their files), or by passwords (a file of
        lines user:password); None: not at all.
    max_packet: bytes of the largest packet.
    Raises ConfigError for an unsafe combination or a foreign address, LinkError if the broker does
    not start, MissingExtra.
    """
    tls = clients if isinstance(clients, Secured) else None
    passwords = clients if isinstance(clients, Path) else None
    check_exposure(listen, known=clients is not None, embedded=kind == "embedded")
    program = find_mosquitto() if kind in ("auto", "mosquitto") else None
    if program is None and (kind == "mosquitto" or clients is not None):
        raise LinkError(
            _without_mosquitto(kind, "--tls" if tls else "--passwords" if passwords else "")
        )
    port = free_port(listen, port)
    folder = Path(tempfile.mkdtemp(prefix="espalier-broker-")) if directory is None else directory
    files.make(folder, "updates on their way, and passwords")
    secret, file = _users(folder, passwords)
    near, far = reachable(listen)
    entry = Address(
        near.strip("[]"), port, tls is not None, COORDINATOR if secret else None, secret or None
    )
    if tls is not None:
        entry = replace(entry, ca=str(tls.ca), cert=str(tls.coordinator))
    address = f"{'mqtts://' if tls else ''}{far}:{port}"
    if program is not None:
        lines = [
            f"listener {port} {listen}",
            *_identification(folder, file, tls),
            *mosquitto.limits(folder, max_packet),
        ]
        command = _configured(program, folder, lines)
        return Broker(
            "mosquitto",
            f"mosquitto {mosquitto.version_of(program)}",
            address,
            url(entry),
            folder / "mosquitto.log",
            command,
        )
    command = embedded.command(near.strip("[]"), port, folder, max_packet)
    return Broker(
        "embedded", embedded.name(), address, url(entry), folder / "embedded.log", command
    )


def _without_mosquitto(kind: str, flag: str) -> str:
    """Why a broker cannot be started, and how to get mosquitto."""
    why = (
        f"{flag} needs mosquitto, because the embedded broker cannot restrict clients "
        "to topics of their own"
        if flag
        else "mosquitto was not found"
    )
    remedy = "install it (apt install mosquitto, brew install mosquitto)" + (
        " and set broker.kind = 'auto'" if kind == "embedded" else ""
    )
    return f"{why}: {remedy}" + (
        "" if flag else ", or use the embedded broker (broker.kind = 'embedded')"
    )


def _users(folder: Path, passwords: Path | None) -> tuple[str, Path | None]:
    """The coordinator's own password, made up for it, and the file of hashes: those given, and its
    own.
    """
    if passwords is None:
        return "", None
    secret, file = secrets.token_urlsafe(24), folder / "passwords"
    users.write(file, {**users.read(passwords), COORDINATOR: users.hashed(secret)})
    files.look_over(passwords, "passwords")
    return secret, file


def _identification(folder: Path, file: Path | None, tls: Secured | None) -> list[str]:
    """The lines of mosquitto's configuration that say how clients are identified. file: of
    passwords.
    """
    if file is None and tls is None:
        return ["allow_anonymous true"]
    rights = folder / RIGHTS
    files.write(rights, mosquitto.rights(COORDINATOR).encode())
    return [
        "allow_anonymous false",
        *([] if file is None else [f"password_file {file.resolve()}"]),
        *([] if tls is None else mosquitto.secured(tls)),
        f"acl_file {rights.resolve()}",
    ]


def _configured(program: str, folder: Path, lines: Sequence[str]) -> list[str]:
    """Write mosquitto's configuration; return the command that starts it."""
    configuration = folder / "mosquitto.conf"
    configuration.write_text("\n".join(lines) + "\n")
    return [program, "-c", str(configuration)]
