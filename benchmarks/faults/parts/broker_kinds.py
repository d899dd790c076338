"""The kinds of brokers of fault trials, as commands that start their servers: mosquitto, the
embedded one, NATS, RabbitMQ, a cluster of three nodes of RabbitMQ, and two mosquittos with a
bridge. All listen on this machine only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.parts.program_search import find_program
from benchmarks.faults.parts.trial_parts import Process
from coordinator.broker import embedded_broker_config
from coordinator.broker.local_addresses import find_free_port
from coordinator.broker.mosquitto_config import MAX_PACKET, find_mosquitto, read_version
from federated.errors import FleetError

__all__ = ["CLUSTER", "KINDS", "LOCAL", "Place", "describe_broker", "find_missing"]

CLUSTER = "rabbitmq-cluster"
STARTING = 240.0  # seconds for a broker to listen
# 2.9.10, Debian's, may deliver nothing more once it was killed: trials would fail at random
OLDEST_NATS = 2, 15
LOCAL = "127.0.0.1"
# Debian's command in PATH would switch to another user
RABBITMQ = Path("/usr/lib/rabbitmq/lib")


@dataclass(frozen=True)
class Place:
    """Where a broker runs.

    folder: of its data.
    persistent: True if a restart keeps its messages.
    host: further address for clients.
    """

    folder: Path
    persistent: bool = True
    host: str = LOCAL


@dataclass
class Server:
    """One process of a broker.

    name: of its log.
    command: starts it.
    port, host: on which it listens.
    clients: True if it listens for clients of MQTT.
    data: folder that a kill deletes, of a server that always stores its messages; None: keep it.
    """

    name: str
    command: Sequence[str]
    port: int
    host: str = LOCAL
    clients: bool = True
    data: Path | None = None
    process: Process = field(init=False)

    def start(self) -> None:
        self.process.start(self.command)

    def kill(self) -> None:
        """Kill it (kill -9), and delete what it stored if it is to lose that."""
        self.process.kill()
        if self.data is not None:
            shutil.rmtree(self.data, ignore_errors=True)

    def wait(self) -> None:
        """Wait until it listens. FleetError: it does not."""
        until = time.monotonic() + STARTING
        while time.monotonic() < until and self.process.exit_code is None:
            with (
                contextlib.suppress(OSError),
                socket.create_connection((self.host, self.port), timeout=1),
            ):
                return
            time.sleep(0.02)
        raise FleetError(f"the broker does not listen:\n{self.process.tail()}")


def make_mosquitto(place: Place) -> list[Server]:
    return [_make_mosquitto("broker", place, ())]


def make_bridge(place: Place) -> list[Server]:
    """Return a mosquitto for the coordinator, and one for agents, which is bridged to it."""
    center = _make_mosquitto("broker", place, ())
    bridge = (
        "connection center",
        f"address {LOCAL}:{center.port}",
        "topic fl/# both 1",
        "cleansession false",
        "restart_timeout 1",
    )
    return [center, _make_mosquitto("site", place, bridge)]


def _make_mosquitto(name: str, place: Place, more: Sequence[str]) -> Server:
    program = _find("mosquitto")
    folder = place.folder.resolve() / name
    folder.mkdir(exist_ok=True)
    port = find_free_port(LOCAL, 0)
    lines = [
        f"listener {port} {LOCAL}",
        *([f"listener {port} {place.host}"] if place.host != LOCAL else []),
        f"persistence {'true' if place.persistent else 'false'}",
        f"persistence_location {folder}/",
        "autosave_interval 1",
        "max_queued_messages 20000",
        "max_queued_bytes 1073741824",
        "max_inflight_messages 20",
        "set_tcp_nodelay true",
        "allow_anonymous true",
        "log_dest stderr",
        "connection_messages false",
        *(["user root"] if os.geteuid() == 0 else []),
        *more,
    ]
    file = folder / "mosquitto.conf"
    file.write_text("\n".join(lines) + "\n")
    return Server(name, [program, "-c", str(file)], port, place.host)


def make_embedded(place: Place) -> list[Server]:
    port = find_free_port(LOCAL, 0)
    command = embedded_broker_config.prepare(LOCAL, port, place.folder, MAX_PACKET)
    return [Server("broker", command, port)]


def make_nats(place: Place) -> list[Server]:
    """Return a NATS server with JetStream and its MQTT."""
    clients, port = (find_free_port(LOCAL, 0) for _ in range(2))
    data = place.folder / "data"
    settings = {
        "server_name": "espalier",
        "listen": f"{LOCAL}:{clients}",
        "jetstream": {"store_dir": str(data)},
        # a namespace's own network, if there is a further address
        "mqtt": {"listen": f"{LOCAL if place.host == LOCAL else '0.0.0.0'}:{port}"},  # noqa: S104
    }
    file = place.folder / "nats.conf"
    file.write_text(json.dumps(settings))
    command = [_find("nats-server"), "-c", str(file)]
    lost = None if place.persistent else data
    return [Server("broker", command, port, place.host, data=lost)]


def make_rabbitmq(place: Place) -> list[Server]:
    """Return a RabbitMQ with its MQTT plugin."""
    return _make_rabbitmq(place, 1)


def make_cluster(place: Place) -> list[Server]:
    """Return a cluster of three nodes of RabbitMQ. Each client's session is on one node."""
    return _make_rabbitmq(place, 3)


def _make_rabbitmq(place: Place, number: int) -> list[Server]:
    folder, names = place.folder.resolve(), find_free_port(LOCAL, 0)
    nodes = [f"espalier-{os.getpid()}-{names}-{index}@localhost" for index in range(number)]
    (folder / "plugins").write_text("[rabbitmq_mqtt].\n")
    # nodes that start at the same time would read the file of the first one before it is complete
    cookie = folder / ".erlang.cookie"
    cookie.write_text(secrets.token_hex(16))
    cookie.chmod(0o400)
    common = {
        "HOME": str(folder),  # of the cookie
        "ERL_EPMD_ADDRESS": ",".join(sorted({LOCAL, place.host})),
        "ERL_EPMD_PORT": str(names),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "none.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RUNNING_UNDER_SYSTEMD": "1",  # one process, without a shell around it
    }
    # the register of nodes; otherwise the first node would start it, and leave it running
    register = [_find("epmd"), "-port", str(names), "-address", common["ERL_EPMD_ADDRESS"]]
    return [
        Server("register", register, names, place.host, clients=False),
        *(_make_node(place, index, nodes, common) for index in range(number)),
    ]


def _make_node(place: Place, index: int, nodes: Sequence[str], common: Mapping[str, str]) -> Server:
    folder = place.folder.resolve()
    amqp, mqtt, among_nodes = (find_free_port(LOCAL, 0) for _ in range(3))
    lines = [
        f"listeners.tcp.1 = {LOCAL}:{amqp}",
        *(
            f"mqtt.listeners.tcp.{number} = {host}:{mqtt}"
            for number, host in enumerate(sorted({LOCAL, place.host}), 1)
        ),
        "mqtt.allow_anonymous = true",
        # anonymous clients are its user guest, whom it otherwise admits from loopback only
        "loopback_users = none",
        "cluster_formation.peer_discovery_backend = classic_config",
        *(
            f"cluster_formation.classic_config.nodes.{place} = {name}"
            for place, name in enumerate(nodes, 1)
        ),
    ]
    file = folder / f"rabbitmq{index}.conf"
    file.write_text("\n".join(lines) + "\n")
    data = folder / f"data{index}"
    variables = {
        **common,
        "RABBITMQ_CONFIG_FILE": str(file),
        "RABBITMQ_DIST_PORT": str(among_nodes),
        "RABBITMQ_LOG_BASE": str(folder / f"log{index}"),
        "RABBITMQ_MNESIA_BASE": str(data),
        "RABBITMQ_NODENAME": nodes[index],
    }
    command = ["env", *(f"{name}={value}" for name, value in variables.items()), _find("rabbitmq")]
    lost = None if place.persistent else data
    return Server(f"broker{index}", command, mqtt, place.host, data=lost)


KINDS: Mapping[str, Callable[[Place], list[Server]]] = {
    "mosquitto": make_mosquitto,
    "embedded": make_embedded,
    "nats": make_nats,
    "rabbitmq": make_rabbitmq,
    CLUSTER: make_cluster,
    "bridge": make_bridge,
}


def find_missing(kind: str) -> str:
    """Return the program that a kind of broker needs and this machine lacks, with its version if
    another one is installed; empty if none.
    """
    wanted = {"bridge": "mosquitto", CLUSTER: "rabbitmq", "nats": "nats-server"}.get(kind, kind)
    return "" if wanted == "embedded" else _explain_missing(wanted, _locate(wanted))


def describe_broker(kind: str) -> str:
    """Return the name and version of an installed broker of a kind."""
    if kind == "embedded":
        return embedded_broker_config.describe()
    if kind in ("mosquitto", "bridge"):
        return f"mosquitto {read_version(_find('mosquitto'))}"
    if kind == "nats":
        return f"NATS {_read_nats_version(_find('nats-server'))}"
    server = Path(_find("rabbitmq")).parents[1].name  # rabbitmq_server-VERSION
    return f"RabbitMQ {server.rpartition('-')[2]}"


def _find(program: str) -> str:
    """Return the path of a program. FleetError: it is not installed, or too old."""
    path = _locate(program)
    if missing := _explain_missing(program, path):
        raise FleetError(f"{missing} not found: install it")
    return str(path)


def _explain_missing(program: str, path: str | None) -> str:
    """Return which program to install; empty if the one at this path will do."""
    if path is None:
        return program
    if program == "nats-server":
        found = _read_nats_version(path)
        if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST_NATS:
            oldest = ".".join(map(str, OLDEST_NATS))
            return f"{program} {oldest} or newer ({path} is {found or 'of an unknown version'})"
    return ""


def _read_nats_version(path: str) -> str:
    """Return the version of a NATS server; empty if it does not say it."""
    done = subprocess.run(  # noqa: S603
        [path, "--version"], capture_output=True, text=True, check=False, timeout=10
    )
    return done.stdout.rpartition("v")[2].strip()


def _locate(program: str) -> str | None:
    if program == "mosquitto":
        return find_mosquitto()
    if program == "rabbitmq":
        servers = sorted(RABBITMQ.glob("rabbitmq_server-*/sbin/rabbitmq-server"))
        return str(servers[-1]) if servers else shutil.which("rabbitmq-server")
    return find_program(program)
