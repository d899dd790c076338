"""A broker started for as long as it is needed: mosquitto where the machine has it, else amqtt in a process of its own.

The broker dies with whoever started it, however that ends: a shell between the two holds a pipe, and when its other end is gone, ends
the broker. So there is nothing to leave behind, not even after `kill -9`.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib import metadata, util
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from coordinator import passwords as users
from federated.errors import ConfigError, LinkError, MissingExtra
from federated.wire.link import OVERHEAD, MqttLink

__all__ = ["Broker", "find_mosquitto", "start"]

PLACES = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")  # where it often is and PATH is not
MAX_PACKET = (16 << 20) + OVERHEAD  # bytes: the largest chunk that can be configured
QUEUE = 20_000  # messages per link that is down or slow: twice the chunks of 2.6 GB; mosquitto drops at 1000 by default, and says nothing
QUEUE_BYTES = 1 << 30
UNGIVEN = range(20_000, 32_000)  # below the ports that Linux and BSD give to outgoing connections
STARTING = 20.0  # seconds until a broker must answer
ENDING = 5.0  # seconds that it has to end by itself
MQTT_3_1_1 = 4  # the protocol's number on the wire
OWN_USER = "espalier-coordinator"
TAIL = 1500  # characters of its log to show

# Runs the command, and ends it when standard input ends. The pipe is read beside it so that the broker's own end is noticed, too.
GUARD = 'exec 3<&0; "$@" </dev/null 3<&- & broker=$!; { cat <&3 >/dev/null; kill "$broker" 2>/dev/null; } & wait "$broker"; exit $?'


class Broker:
    """A broker that runs. address: for agents; url: for the coordinator, with the password that it gave itself where there are any."""

    def __init__(self, kind: str, version: str, address: str, url: str, log: Path, process: subprocess.Popen[bytes]) -> None:
        self.kind, self.version, self.address, self.url, self.log = kind, version, address, url, log
        self._process = process

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the broker and waits for it; twice is fine."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING)
        with contextlib.suppress(ProcessLookupError):  # what is left of its group
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def start(
    listen: str = "127.0.0.1",
    port: int = 1883,
    kind: str = "auto",
    directory: Path | None = None,
    passwords: Path | None = None,
    *,
    max_packet: int = MAX_PACKET,
) -> Broker:
    """Starts a broker and waits until it answers.

    listen: an IP address or `localhost`; any but loopback needs `passwords`, a file of lines user:password. port: 0 for any free one.
    kind: mosquitto, amqtt, or auto. directory: for its configuration, its log and what it keeps; a temporary one by default.
    max_packet: bytes of the largest packet that mosquitto takes (amqtt takes any).
    Raises ConfigError for a combination that is not safe or an address that is not ours, LinkError where it does not start, MissingExtra.
    """
    _check_exposure(listen, passwords)
    program = find_mosquitto() if kind in ("auto", "mosquitto") else None
    if kind == "mosquitto" and program is None:
        raise LinkError("mosquitto was not found: install it (apt install mosquitto, brew install mosquitto), or use another kind of broker")
    port = _free_port(listen, port)
    folder = Path(tempfile.mkdtemp(prefix="espalier-broker-")) if directory is None else directory
    folder.mkdir(parents=True, exist_ok=True)
    credentials, file = _users(folder, passwords)
    if program is not None:
        command = _mosquitto(program, listen, port, folder, file, max_packet)
        return _launch("mosquitto", _version(program), command, listen, port, folder, credentials)
    command = _amqtt(listen, port, folder, file)
    return _launch("amqtt", metadata.version("amqtt"), command, listen, port, folder, credentials)


def find_mosquitto() -> str | None:
    """The program's path, on PATH or where systems put it."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=os.pathsep.join(PLACES))


def _check_exposure(listen: str, passwords: Path | None) -> None:
    try:
        loopback = listen == "localhost" or ipaddress.ip_address(listen).is_loopback
    except ValueError:
        raise ConfigError(f"broker.listen: expected an IP address or localhost, found '{listen}'") from None
    if not loopback and passwords is None:
        raise ConfigError(
            f"broker.listen = '{listen}' opens the broker to the network, where anyone could take part: give a file of lines user:password "
            "by --passwords (agents join by mqtt://user:password@host), or use a broker of your own by --broker"
        )


def _free_port(listen: str, port: int) -> int:
    """`port`, if it can be bound; for 0 a free one that no outgoing connection is given before the broker takes it."""
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    for candidate in [port] if port else [secrets.choice(UNGIVEN) for _ in range(20)]:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((listen, candidate))
                return candidate
            except OSError as error:
                failed = _unbound(listen, candidate, error)
    raise failed


def _unbound(listen: str, port: int, error: OSError) -> ConfigError | LinkError:
    if error.errno == errno.EADDRINUSE:
        return LinkError(
            f"port {port} of {listen} is in use: if a broker runs there, use it by --broker {listen}:{port}; else choose another by --port"
        )
    if error.errno == errno.EACCES:
        return LinkError(f"port {port} may not be used by this user: choose one above 1023 by --port")
    return ConfigError(f"broker.listen = '{listen}': no address of this machine ({error.strerror})")


def _users(folder: Path, passwords: Path | None) -> tuple[str, Path | None]:
    """What goes before the host in the coordinator's own address, and the file of hashes: those given, and one made up for the coordinator."""
    if passwords is None:
        return "", None
    secret, file = secrets.token_urlsafe(24), folder / "passwords"
    users.write(file, {**users.read(passwords), OWN_USER: users.hashed(secret)})
    return f"{OWN_USER}:{quote(secret)}@", file


def _mosquitto(program: str, listen: str, port: int, folder: Path, file: Path | None, max_packet: int) -> list[str]:
    lines = [
        f"listener {port} {listen}",
        f"allow_anonymous {'true' if file is None else 'false'}",
        *([] if file is None else [f"password_file {file.resolve()}"]),
        f"max_packet_size {max_packet}",
        "max_inflight_messages 20",
        f"max_queued_messages {QUEUE}",
        f"max_queued_bytes {QUEUE_BYTES}",
        "persistent_client_expiration 1d",
        "set_tcp_nodelay true",
        "persistence true",
        f"persistence_location {folder.resolve()}/",
        "autosave_interval 30",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "connection_messages false",
        *(["user root"] if os.geteuid() == 0 else []),  # else it becomes a user that may not write here, and keeps nothing
    ]
    configuration = folder / "mosquitto.conf"
    configuration.write_text("\n".join(lines) + "\n")
    return [program, "-c", str(configuration)]


def _amqtt(listen: str, port: int, folder: Path, file: Path | None) -> list[str]:
    if util.find_spec("amqtt") is None:
        raise MissingExtra("a broker without mosquitto", "coordinator", "amqtt")
    settings = folder / "amqtt.json"
    settings.write_text(json.dumps({"listen": listen, "port": port, "passwords": str(file.resolve()) if file else ""}))
    return [sys.executable, "-m", "coordinator.embedded", str(settings)]


def _launch(kind: str, version: str, command: list[str], listen: str, port: int, folder: Path, credentials: str) -> Broker:
    log = folder / f"{kind}.log"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    with log.open("wb") as out:
        # A session of its own: Ctrl-C is for the coordinator, which has goodbyes to send.
        process = subprocess.Popen(  # noqa: S603  # nothing in it comes from elsewhere
            ["/bin/sh", "-c", GUARD, "guard", *command], stdin=subprocess.PIPE, stdout=out, stderr=out, env=environment, start_new_session=True
        )
    near, far = _reachable(listen)
    broker = Broker(kind, version, f"{far}:{port}", f"mqtt://{credentials}{near}:{port}", log, process)
    try:
        _await(broker)
    except BaseException:
        broker.stop()
        raise
    return broker


def _await(broker: Broker) -> None:
    """Returns once a client could connect. Raises LinkError with the end of the broker's log where none can."""
    version = MQTT_3_1_1 if broker.kind == "amqtt" else None
    until = time.monotonic() + STARTING
    why = ""
    while time.monotonic() < until and broker._process.poll() is None:
        try:
            MqttLink(broker.url, f"waiting-{secrets.token_hex(4)}", timeout=5.0, version=version).close()
            return
        except LinkError as error:
            why = str(error)
            time.sleep(0.05)
    ended = broker._process.poll()
    how = f"ended with status {ended}" if ended is not None else f"did not answer within {STARTING:.0f} s ({why})"
    tail = broker.log.read_text(errors="replace")[-TAIL:].strip()
    raise LinkError(f"{broker.kind} {broker.version} {how}; its log ({broker.log}) ends:\n{tail or '(empty)'}")


def _reachable(listen: str) -> tuple[str, str]:
    """The host to connect to from here and from elsewhere, as addresses spell it."""
    if listen in ("0.0.0.0", "::"):  # noqa: S104  # compared, not bound
        return ("127.0.0.1" if listen == "0.0.0.0" else "[::1]"), _own_address(listen)  # noqa: S104
    host = f"[{listen}]" if ":" in listen else listen
    return host, host


def _own_address(listen: str) -> str:
    """This machine's address on the way to the world, which others in its network can most likely reach; its name where there is no network."""
    family, world = (socket.AF_INET6, "2001:db8::1") if ":" in listen else (socket.AF_INET, "192.0.2.1")
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((world, 9))  # a datagram socket sends nothing by this
        host = str(probe.getsockname()[0])
        return f"[{host}]" if ":" in host else host
    return socket.gethostname()


def _version(program: str) -> str:
    shown = subprocess.run([program, "-h"], capture_output=True, text=True, check=False, timeout=10).stdout  # noqa: S603
    found = re.search(r"mosquitto version (\S+)", shown)
    return found[1] if found else "of unknown version"
