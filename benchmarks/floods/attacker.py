"""`python -m benchmarks.floods.attacker ORDER`: flood one port or topic of a run on command, from a
process with a processor of its own.

ORDER is JSON (`Order`). Lines on standard input start and stop the flood. After each flood it
prints how often it connected, asked or published. It ends when standard input closes.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from benchmarks.attacks.connection_flood import STRANGER, THREADS, connect
from benchmarks.attacks.malicious_agents import LIAR, MESSAGES
from benchmarks.faults.trial_settings import RUN
from benchmarks.raw_agents.raw_agent import Raw, RawAgent
from benchmarks.raw_agents.raw_fleet import RawFleet
from coordinator.simulate.demo_fleet import process_environment, python_command

__all__ = ["AGENT_FLOODS", "STRANGER_FLOODS", "Attacker", "Order", "connect_packet", "main"]

BURST = 50  # messages per turn of an agent
QUESTION = 8 << 20  # bytes
SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"  # half a request
BATCHES, HALVES = 20, 4  # batches of requests on a connection, and connections with half requests
TIMEOUT = 10.0  # seconds for an answer


class Order(msgspec.Struct, frozen=True):
    """Task of an attacker.

    flood: name in STRANGER_FLOODS or AGENT_FLOODS
    processor: number of the processor to run on
    port: to flood; for agents, that of the broker
    certificates: the authority's, and the attacker's with its key
    delay: seconds that a training of an attacking agent takes
    """

    flood: str
    processor: int
    port: int
    certificates: tuple[str, str]
    delay: float


class Switch:
    """State that the threads of an attacker share.

    flooding: set while the flood lasts
    count: connections, requests or messages so far
    """

    def __init__(self) -> None:
        self.flooding = threading.Event()
        self.count = 0

    def obey(self) -> None:
        """Start and stop as standard input says. End the process when it closes."""
        for line in sys.stdin:
            if line.strip() == "start":
                self.flooding.set()
            else:
                self.flooding.clear()
                print(self.count, flush=True)
        os._exit(0)


# ---- strangers -----------------------------------------------------------------------------------


def ask_large(order: Order) -> None:
    """Ask the inference server a question of 8 MB."""
    link = http.client.HTTPConnection(
        "127.0.0.1", order.port, timeout=TIMEOUT, source_address=STRANGER
    )
    body = b'{"inputs":[' + b"1.5," * ((QUESTION - 16) // 4) + b"1]}"
    with contextlib.closing(link), contextlib.suppress(http.client.HTTPException):
        link.request("POST", "/infer", body, {"Content-Type": "application/json"})
        link.getresponse().read()


def ask_metrics(order: Order) -> None:
    """Send batches of requests for metrics on one connection, and half a request on others, from
    one of many addresses.
    """
    source = f"127.0.0.{random.randint(2, 254)}", 0  # noqa: S311
    with contextlib.ExitStack() as stack:
        whole, *halves = (
            stack.enter_context(socket.create_connection(("127.0.0.1", order.port), 3, source))
            for _ in range(1 + HALVES)
        )
        for half in halves:
            half.sendall(SCRAPE)
        for _ in range(BATCHES):
            for half in halves:
                half.sendall(b"X")
            whole.sendall((SCRAPE + b"\r\n") * BURST)
            if not whole.recv(1 << 20):
                break


def connect_packet(client: str) -> bytes:
    """Return an MQTT 3.1.1 CONNECT packet with a clean session."""
    name = client.encode()
    variable = b"\x00\x04MQTT\x04\x02\x00\x3c" + len(name).to_bytes(2, "big") + name
    return bytes([0x10, len(variable)]) + variable


def connect_mqtt(order: Order, *, certified: bool) -> None:
    """Connect to the broker as an MQTT client, with or without a certificate, and hang up."""
    context = ssl.create_default_context(cafile=order.certificates[0])
    if certified:
        context.load_cert_chain(order.certificates[1])
    with (
        socket.create_connection(("127.0.0.1", order.port), TIMEOUT, STRANGER) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as link,
    ):
        link.sendall(connect_packet(f"{RUN}-{LIAR}-{threading.get_ident()}"))
        link.recv(4)


STRANGER_FLOODS: Mapping[str, tuple[str, Callable[[Order], None]]] = MappingProxyType(
    {
        "none": ("broker", lambda order: time.sleep(1.0)),  # to compare with
        "enrolment: connect and hang up": ("enrolment", lambda order: connect("bare", order.port)),
        "enrolment: TLS, then hang up": ("enrolment", lambda order: connect("tls", order.port)),
        "enrolment: silent": ("enrolment", lambda order: connect("silent", order.port)),
        "metrics: silent": ("metrics", lambda order: connect("silent", order.port)),
        "metrics: requests": ("metrics", ask_metrics),
        "inference: silent": ("inference", lambda order: connect("silent", order.port)),
        "inference: 8 MB questions": ("inference", ask_large),
        "broker: connect and hang up": ("broker", lambda order: connect("bare", order.port)),
        "broker: MQTT without certificate": (
            "broker",
            lambda order: connect_mqtt(order, certified=False),
        ),
        "broker: MQTT with certificate": (
            "broker",
            lambda order: connect_mqtt(order, certified=True),
        ),
    }
)
"""Floods of strangers: the server that each attacks, and a function that attacks it once."""

AGENT_FLOODS: Mapping[str, Callable[[RawAgent, int], tuple[str, bytes]]] = MappingProxyType(
    {f"agent: {name}": make for name, make in MESSAGES.items()}
)
"""Floods of an enrolled agent that also trains: functions that make one message."""


def repeat(order: Order, switch: Switch) -> None:
    """Attack while the switch is on."""
    _, once = STRANGER_FLOODS[order.flood]
    pause = threading.Event()
    while switch.flooding.wait():
        try:
            once(order)
            switch.count += 1
        except OSError:  # the server closed the connection
            pause.wait(0.01)


def join(order: Order, switch: Switch) -> None:
    """Take part in the run as an honest agent, and publish without limit while the switch is on."""
    make = AGENT_FLOODS[order.flood]
    authority, own = (Path(path) for path in order.certificates)
    how = Raw(delay=order.delay, certificates={LIAR: (authority, own)})
    fleet = RawFleet(RUN, (LIAR,), ("localhost", order.port), how)
    one = fleet.sockets[LIAR]
    while True:
        ready = switch.flooding.is_set() and one.client.is_connected()
        fleet.turn(0.0 if ready else 0.02)
        if ready and not one.client.want_write():
            for _ in range(BURST):
                switch.count += 1
                one.client.publish(*make(one.agent, switch.count), qos=0)
                if one.client.want_write():  # large messages fill the socket
                    break


def main(arguments: list[str]) -> None:
    order = msgspec.json.decode(arguments[0], type=Order)
    os.sched_setaffinity(0, {order.processor})
    switch = Switch()
    if order.flood in AGENT_FLOODS:
        threading.Thread(target=switch.obey, daemon=True).start()
        join(order, switch)
    for _ in range(THREADS):
        threading.Thread(target=repeat, args=(order, switch), daemon=True).start()
    switch.obey()


# ---- its parent ----------------------------------------------------------------------------------


class Attacker:
    """An attacker as its parent sees it; idle until `start`."""

    def __init__(self, order: Order, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603
                python_command("benchmarks.floods.attacker", msgspec.json.encode(order).decode()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=process_environment(),
                text=True,
            )

    def start(self) -> None:
        self._tell("start")

    def stop(self) -> int:
        """End the flood. Return how often it connected, asked or published."""
        self._tell("stop")
        assert self._process.stdout is not None
        return int(self._process.stdout.readline() or 0)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
