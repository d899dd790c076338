"""Revoke many connected agents by mosquitto's dynamic-security plugin, and measure how soon they
are disconnected and whether they stay out.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.attacks.strangers import make_address
from benchmarks.faults.trial_certificates import TlsSetup
from benchmarks.faults.trial_settings import RUN
from benchmarks.floods.attacker import connect_packet
from coordinator.access.broker_setup import AuthorityWatcher, BrokerAccess
from coordinator.broker import local_broker as brokers
from federated.errors import LinkError
from federated.wire import topics
from federated.wire.link import Delivery, Link
from federated.wire.links.catalogue import open_link

__all__ = ["Revocations", "measure_revocations"]

CLOSING = 60.0  # seconds for the broker to close all connections
TRIED = 20  # barred agents that reconnect and try to publish, subscribe and receive
LISTENED = 1.0  # seconds to wait for what must not arrive
COMMAND = b"command "


@dataclass(frozen=True)
class Revocations:
    """Revocation of connected agents.

    agents: number of agents
    revoke_s: to record the revocations and to sign the list
    apply_s: until the broker had new rights and list and the plugin had disconnected the agents
    closed_s: until the last connection was closed, `apply_s` included
    total_s: both, in all
    per_agent_ms: `total_s` per agent, in milliseconds
    restarted: True if the broker was restarted, as without the plugin
    bystander_kept: True if an agent that was not revoked stayed connected
    still_connected: revoked agents whose connections stayed open
    reconnected: revoked certificates that the broker accepted again
    barred: agents without rights whose certificates are valid
    returned: those of them that could connect again
    published: their messages that reached the coordinator
    received: the coordinator's commands to one or to all agents that reached them
    met: True if no revoked or barred agent could do anything
    """

    agents: int
    revoke_s: float
    apply_s: float
    closed_s: float
    total_s: float
    per_agent_ms: float
    restarted: bool
    bystander_kept: bool
    still_connected: int
    reconnected: int
    barred: int
    returned: int
    published: int
    received: int
    met: bool


def measure_revocations(count: int, folder: Path) -> Revocations:
    """Enrol and connect `count` agents, revoke all, and let them try again. LinkError: an agent
    cannot connect before its revocation.
    """
    with ExitStack() as stack:
        tls = TlsSetup(folder / "pki")
        stack.callback(tls.close)
        names = [f"r{number:04}" for number in range(count)]
        barred = [f"b{number:02}" for number in range(min(TRIED, count))]
        certificates = {
            name: pair[1] for name, pair in tls.enrol([*names, *barred, "bystander"]).items()
        }
        broker = stack.enter_context(
            brokers.start(
                "127.0.0.1", tls.port, "mosquitto", folder / "broker", tls.authority.tls_files
            )
        )
        process = broker.pid
        access = BrokerAccess(broker.url)
        watcher = AuthorityWatcher(tls.authority, access, broker)
        links = connect_all(tls, {name: certificates[name] for name in names}, stack)
        bystander = connect_all(tls, {"bystander": certificates["bystander"]}, stack)
        start = time.monotonic()
        tls.authority.revoke_all(names)
        revoked = time.monotonic()
        watcher.poll()
        applied = time.monotonic()
        left = wait_until_closed(links.values(), CLOSING)
        closed = time.monotonic()
        kept = wait_until_closed(bystander.values(), 0.1) == 1
        again = sum(may_connect(tls, name, certificates[name]) for name in names)
        for name in barred:
            access.suspend(name)
        watcher.poll()
        achieved = try_rights(tls, broker.url, {name: certificates[name] for name in barred})
        restarted = broker.pid != process
    seconds = closed - start
    return Revocations(
        count,
        round(revoked - start, 3),
        round(applied - revoked, 3),
        round(closed - revoked, 3),
        round(seconds, 3),
        round(1000 * seconds / count, 3),
        restarted,
        kept,
        left,
        again,
        len(barred),
        *achieved,
        met=kept and not (restarted or left or again or any(achieved[1:])),
    )


def connect(tls: TlsSetup, name: str, certificate: Path) -> ssl.SSLSocket:
    """Connect an agent. Raises OSError, LinkError."""
    context = ssl.create_default_context(cafile=str(tls.authority.ca))
    context.load_cert_chain(str(certificate))
    with ExitStack() as stack:
        plain = stack.enter_context(socket.create_connection(("127.0.0.1", tls.port), 10))
        link = stack.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
        link.sendall(connect_packet(f"{RUN}-{name}"))
        answer = link.recv(4)
        if answer != b"\x20\x02\x00\x00":
            raise LinkError(f"{name}: the broker answered {answer!r} to CONNECT")
        stack.pop_all()
    return link


def connect_all(
    tls: TlsSetup, certificates: Mapping[str, Path], stack: ExitStack
) -> dict[str, ssl.SSLSocket]:
    """Connect agents, until the stack is closed."""
    links = {name: connect(tls, name, path) for name, path in certificates.items()}
    for link in links.values():
        stack.callback(link.close)
    return links


def may_connect(tls: TlsSetup, name: str, certificate: Path) -> bool:
    """Return True if the broker accepts a certificate."""
    try:
        connect(tls, name, certificate).close()
    except (OSError, LinkError):
        return False
    return True


def wait_until_closed(links: Iterable[ssl.SSLSocket], timeout: float) -> int:
    """Wait until the broker has closed the connections. Return how many are still open."""
    until = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for link in links:
            link.setblocking(False)
            selector.register(link, selectors.EVENT_READ, link)
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if is_closed(key.data):
                    selector.unregister(key.fileobj)
        return len(selector.get_map())


def is_closed(link: ssl.SSLSocket) -> bool:
    """Read what has arrived. Return True if the connection is closed."""
    try:
        return link.recv(1024) == b""
    except (ssl.SSLWantReadError, BlockingIOError):
        return False
    except OSError:
        return True


def try_rights(tls: TlsSetup, url: str, certificates: Mapping[str, Path]) -> tuple[int, int, int]:
    """Let barred agents publish, subscribe and receive in their own topics. Return how many could
    connect, how many messages reached the coordinator, and how many reached the agents.
    """
    received = 0
    with closing(open_link(url, "listener")) as listener, ExitStack() as stack:
        listener.subscribe(topics.all_topics())
        links = dict[str, Link]()
        for name, path in certificates.items():
            with suppress(LinkError):
                links[name] = open_link(make_address(tls, path), f"{RUN}-{name}")
                stack.callback(links[name].close)
        for name, link in links.items():
            with suppress(LinkError):
                for pattern in topics.agent_patterns(RUN, name):
                    link.subscribe(pattern)
                link.publish(topics.say(RUN, name), name.encode())
        for name in certificates:
            listener.publish(topics.command(RUN, name), COMMAND + b"to one")
        listener.publish(topics.everyone(RUN), COMMAND + b"to all")
        published = sum(one.topic.endswith("/say") for one in receive_all(listener, LISTENED))
        for link in links.values():  # LISTENED seconds have passed
            with suppress(LinkError):
                arrived = receive_all(link, 0.01)
                received += sum(one.payload.startswith(COMMAND) for one in arrived)
    return len(links), published, received


def receive_all(link: Link, silence: float) -> list[Delivery]:
    """Return what arrives until nothing has arrived for `silence` seconds."""
    found = list[Delivery]()
    while (delivery := link.receive(silence)) is not None:
        found.append(delivery)
    return found
