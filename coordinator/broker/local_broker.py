"""Start and stop a broker on this machine: mosquitto if it is installed, otherwise the embedded
one.

The broker ends with the process that started it, even after `kill -9`: a shell between the two
holds a pipe to that process and ends the broker when the pipe closes.
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
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from coordinator.broker import embedded_broker_config as embedded
from coordinator.broker import mosquitto_config as mosquitto
from coordinator.broker import passwords as users
from coordinator.broker.client_disconnection import (
    configure_plugin,
    disconnect_users,
    find_plugin,
)
from coordinator.broker.local_addresses import check_exposure, find_free_port, find_reachable_hosts
from coordinator.broker.mosquitto_config import (
    COORDINATOR,
    MAX_PACKET,
    Rights,
    TlsFiles,
    find_mosquitto,
)
from federated.errors import LinkError
from federated.runtime import atomic_files
from federated.wire.links.mqtt_client_setup import ClientSetup, connect, disconnect
from federated.wire.mqtt_address import MqttAddress, format_url, parse_mqtt_address

__all__ = ["Broker", "find_mosquitto", "start"]

log = logging.getLogger(__name__)

# of a listener for the coordinator alone: the certificate of another authority on the devices'
# listener need not name this machine
OWN_HOST = "127.0.0.1"
START_TIMEOUT = 20.0  # seconds until the broker must answer
STOP_TIMEOUT = 5.0  # seconds for the broker to stop by itself
SAVE_TIMEOUT = 60.0  # seconds for the broker to write its state before a restart
MQTT_3_1_1 = 4  # the protocol's number on the wire
ACL_FILE = "rights.acl"
TAIL = 20  # lines of the broker's log to show
WINDOWS = (
    "a broker cannot be started from here on Windows: start one yourself, such as mosquitto's "
    "service, and run coordinator start with its address, --broker HOST"
)

# Runs the command and ends it when standard input closes. The pipe is read in the background, so
# that the end of the broker is noticed as well. SIGHUP goes to the whole process group (see
# `reload`): all of it ignores the signal, except for a broker that handles it.
GUARD = """trap '' HUP; exec 3<&0; "$@" </dev/null 3<&- & broker=$!
{ cat <&3 >/dev/null; kill "$broker" 2>/dev/null; } &
wait "$broker"
"""


@dataclass(frozen=True)
class Program:
    """A broker's program, and the command that starts it.

    kind: mosquitto or embedded.
    name: name and version, for messages.
    command: starts it.
    log: file of its log.
    disconnects: whether it can disconnect single clients.
    user: name of the coordinator in its access control list.
    """

    kind: str
    name: str
    command: list[str]
    log: Path
    disconnects: bool = False
    user: str = COORDINATOR


class Broker:
    """A running broker.

    kind, name, log: see `Program`.
    address: for agents.
    url: for the coordinator, with its credentials.
    """

    def __init__(self, program: Program, address: str, url: str) -> None:
        """Start the broker and wait until it answers. Raises LinkError with the end of its log."""
        self.kind, self.name, self.log = program.kind, program.name, program.log
        self.address, self.url, self._program = address, url, program
        self._process = self._start()

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
        """The process id of the shell whose child is the broker."""
        return self._process.pid

    def reload(self, rights: Rights) -> None:
        """Make mosquitto reload its certificates, its revocation list and its access control list.
        Clients without rights stay connected until `disconnect`, but can do nothing.
        """
        acl = mosquitto.format_acl(self._program.user, rights)
        atomic_files.write(self.log.parent / ACL_FILE, acl.encode())
        # Not through a trap of the shell: a shell that starts with SIGHUP ignored, as under nohup,
        # cannot set one.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGHUP)

    def disconnect(self, names: Collection[str]) -> None:
        """Disconnect the clients with these names, which may not reconnect: without mosquitto's
        plugin, by a restart. Raises LinkError.
        """
        if self._program.disconnects:
            try:
                disconnect_users(self.url, names)
                return
            except LinkError as error:
                log.warning("restarting the broker to disconnect revoked clients: %s", error)
        self.restart()

    def restart(self) -> None:
        """Restart the broker with its stored state. Disconnects all clients; authorised ones
        reconnect.
        """
        self.stop(SAVE_TIMEOUT)
        self._process = self._start()

    def restart_if_dead(self) -> None:
        """Restart the broker if it has crashed or was killed. Raises LinkError if that fails."""
        if (status := self._process.poll()) is not None:
            log.error(
                "%s exited with status %d and is restarted; end of its log: %s",
                self.name,
                status,
                self._read_log_tail(1) or "(empty)",
            )
            self.restart()

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Stop the broker and wait until it has ended. May be called twice."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        with contextlib.suppress(ProcessLookupError):  # the rest of its process group
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as out:
            # Its own session: Ctrl-C must reach only the coordinator, which has messages to send.
            self._process = subprocess.Popen(  # noqa: S603  # nothing in it comes from elsewhere
                ["/bin/sh", "-c", GUARD, "guard", *self._program.command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self._process

    def _wait_until_ready(self) -> None:
        """Return once a client can connect. Raises LinkError with the end of the broker's log if
        none can.
        """
        version = MQTT_3_1_1 if self.kind == "embedded" else None
        setup = ClientSetup(parse_mqtt_address(self.url), f"waiting-{secrets.token_hex(4)}")
        until = time.monotonic() + START_TIMEOUT
        why = ""
        while time.monotonic() < until and self._process.poll() is None:
            try:
                greeting = connect(setup, timeout=5.0, version=version)
            except LinkError as error:
                why = str(error)
                time.sleep(0.05)
            else:
                disconnect(greeting.client, greeting.protocol)
                return
        ended = self._process.poll()
        how = (
            f"exited with status {ended}"
            if ended is not None
            else f"did not answer within {START_TIMEOUT:.0f} s ({why})"
        )
        tail = self._read_log_tail(TAIL) or "(empty)"
        raise LinkError(f"{self.name} {how}; end of its log ({self.log}):\n{tail}")

    def _read_log_tail(self, lines: int) -> str:
        return "\n".join(self.log.read_text(errors="replace")[-1500:].strip().splitlines()[-lines:])


def start(
    listen: str = "127.0.0.1",
    port: int = 1883,
    kind: str = "auto",
    directory: Path | None = None,
    clients: TlsFiles | Path | None = None,
    max_packet: int = MAX_PACKET,
) -> Broker:
    """Start a broker and wait until it answers.

    listen: an IP address or `localhost`; any but loopback requires `clients`.
    port: 0 picks a free one.
    kind: mosquitto, embedded, or auto (mosquitto if it is installed).
    directory: for configuration, log and data; a temporary one by default.
    clients: how clients are authenticated: with certificates (the TLS files), with passwords (a
        file of lines user:password), or None, not at all.
    max_packet: largest packet, bytes.
    Raises ConfigError for an unsafe combination or an address of another machine, LinkError if the
    broker does not start or the system is Windows, MissingExtra.
    """
    tls = clients if isinstance(clients, TlsFiles) else None
    passwords = clients if isinstance(clients, Path) else None
    check_exposure(listen, known=clients is not None, embedded=kind == "embedded")
    program = _find_program(kind, "broker.tls" if tls else "broker.passwords" if passwords else "")
    port = find_free_port(listen, port)
    folder = Path(tempfile.mkdtemp(prefix="espalier-broker-")) if directory is None else directory
    atomic_files.make_private(folder, "updates in transit, and passwords")
    secret, file = _write_passwords(folder, passwords)
    near, far = find_reachable_hosts(listen)
    entry = MqttAddress(
        near.strip("[]"), port, tls is not None, COORDINATOR if secret else None, secret or None
    )
    if tls is not None:
        entry = replace(entry, ca=str(tls.ca), cert=str(tls.coordinator))
    if tls is not None and tls.outside is not None:
        entry = replace(entry, host=OWN_HOST, port=find_free_port(OWN_HOST, 0))
    address, url = f"{'mqtts://' if tls else ''}{far}:{port}", format_url(entry)
    if program is None:
        command = embedded.prepare(near.strip("[]"), port, folder, max_packet)
        own = Program("embedded", embedded.describe(), command, folder / "embedded.log")
        return Broker(own, address, url)
    configuration = folder / "mosquitto.conf"
    plugin = find_plugin(program) if tls is not None else None
    lines = [
        f"listener {port} {listen}",
        *_configure_clients(folder, file, tls),
        *mosquitto.configure_limits(folder, max_packet),
        *(configure_plugin(plugin, folder) if plugin is not None else []),
        *_configure_own_listener(tls, entry.port),
    ]
    configuration.write_text("\n".join(lines) + "\n")
    own = Program(
        "mosquitto",
        f"mosquitto {mosquitto.read_version(program)}",
        [program, "-c", str(configuration)],
        folder / "mosquitto.log",
        disconnects=plugin is not None,
        user=COORDINATOR if tls is None else tls.user,
    )
    return Broker(own, address, url)


def _find_program(kind: str, setting: str) -> str | None:
    """Return mosquitto's path; None for the embedded broker. setting: that requires mosquitto.
    Raises LinkError.
    """
    if os.name == "nt":
        raise LinkError(WINDOWS)
    program = find_mosquitto() if kind in ("auto", "mosquitto") else None
    if program is None and (kind == "mosquitto" or setting):
        raise LinkError(_explain_missing(kind, setting))
    return program


def _explain_missing(kind: str, setting: str) -> str:
    """Explain why mosquitto is required, and how to install it. setting: that requires it."""
    why = (
        f"{setting} requires mosquitto, because the embedded broker cannot restrict clients "
        "to their own topics"
        if setting
        else "mosquitto was not found"
    )
    remedy = "install it (apt install mosquitto, brew install mosquitto)" + (
        " and set broker.kind = 'auto'" if kind == "embedded" else ""
    )
    return f"{why}: {remedy}" + (
        "" if setting else ", or use the embedded broker (broker.kind = 'embedded')"
    )


def _write_passwords(folder: Path, passwords: Path | None) -> tuple[str, Path | None]:
    """Write the password hashes for mosquitto: those given, and one for the coordinator. Return the
    coordinator's generated password and the file.
    """
    if passwords is None:
        return "", None
    secret, file = secrets.token_urlsafe(24), folder / "passwords"
    users.write(file, {**users.read(passwords), COORDINATOR: users.hash_password(secret)})
    atomic_files.warn_if_public(passwords, "passwords")
    return secret, file


def _configure_clients(folder: Path, file: Path | None, tls: TlsFiles | None) -> list[str]:
    """Return the lines of mosquitto's configuration that authenticate clients. file: of password
    hashes.
    """
    if file is None and tls is None:
        return ["allow_anonymous true"]
    acl = folder / ACL_FILE
    user, rights = (COORDINATOR, Rights()) if tls is None else (tls.user, tls.rights)
    atomic_files.write(acl, mosquitto.format_acl(user, rights).encode())
    return [
        "allow_anonymous false",
        *([] if file is None else [f"password_file {file.resolve()}"]),
        *([] if tls is None else mosquitto.configure_tls(tls.outside or tls.own)),
        f"acl_file {acl.resolve()}",
    ]


def _configure_own_listener(tls: TlsFiles | None, port: int) -> list[str]:
    """Return the configuration of a listener for the coordinator alone, if devices have
    certificates of another authority.
    """
    if tls is None or tls.outside is None:
        return []
    return [f"listener {port} {OWN_HOST}", *mosquitto.configure_tls(tls.own)]
