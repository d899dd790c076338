"""Move the bytes of rounds with MQTT clients that do nothing else: the floor of a round's time.

`python -m benchmarks.round.bare_mqtt_client HOST:PORT ROUNDS AGENTS SIZE` is the sender: it sends
SIZE bytes to all agents, in chunks, and receives as much from each. It prints the seconds of each
round. With the name of an agent as a fifth argument it is that agent.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from federated.wire.link import CHUNK

__all__ = ["main"]

DOWN, UP, READY = "bare/down", "bare/up", "bare/ready"
KEEPALIVE = 600  # seconds, for a machine with other work
SILENCE = 300.0  # seconds without the end of a round after which a client gives up


@dataclass(frozen=True)
class Traffic:
    """What moves.

    rounds: number of rounds.
    agents: number of agents.
    size: bytes to each agent, and from each.
    """

    rounds: int
    agents: int
    size: int


class Client:
    """A client that counts the bytes that it receives, up to an expected number."""

    def __init__(self, address: str, name: str, pattern: str) -> None:
        self._count, self._wanted, self._done = 0, 0, threading.Event()
        self._lock = threading.Lock()
        self._greeted = threading.Event()
        host, _, port = address.rpartition(":")
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name)
        self._client.max_queued_messages_set(0)  # no limit
        self._client.on_message = lambda c, u, message: self._add(len(message.payload))
        self._client.on_subscribe = lambda *_: self._greeted.set()
        self._client.connect(host, int(port), keepalive=KEEPALIVE)
        self._client.loop_start()
        self._client.subscribe(pattern, qos=1)
        assert self._greeted.wait(SILENCE)

    def _add(self, size: int) -> None:
        with self._lock:
            self._count += size
            if self._wanted and self._count >= self._wanted:
                self._count -= self._wanted
                self._wanted = 0
                self._done.set()

    def expect(self, size: int) -> None:
        """Begin to wait for this number of bytes, which may have come already."""
        self._done.clear()
        with self._lock:
            self._wanted = size
        self._add(0)

    def wait(self) -> None:
        assert self._done.wait(SILENCE), "no round ended for long"

    def send(self, topic: str, blob: memoryview) -> None:
        for start in range(0, len(blob), CHUNK):
            chunk = bytes(blob[start : start + CHUNK])
            self._client.publish(f"{topic}/{start // CHUNK}", chunk, qos=1)

    def say(self, topic: str) -> None:
        self._client.publish(topic, b"1", qos=1).wait_for_publish(SILENCE)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def send_rounds(address: str, traffic: Traffic) -> None:
    blob = memoryview(bytes(traffic.size))
    ready = Client(address, "bare-ready", f"{READY}/+")
    ready.expect(traffic.agents)
    hub = Client(address, "bare-hub", f"{UP}/#")
    print("listening", flush=True)
    ready.wait()
    for _ in range(traffic.rounds):
        start = time.perf_counter()
        hub.expect(traffic.agents * traffic.size)
        hub.send(DOWN, blob)
        hub.wait()
        print(f"round {time.perf_counter() - start:.3f}", flush=True)
    for client in (hub, ready):
        client.close()


def answer_rounds(address: str, traffic: Traffic, name: str) -> None:
    blob = memoryview(bytes(traffic.size))
    client = Client(address, f"bare-{name}", f"{DOWN}/#")
    client.say(f"{READY}/{name}")
    for number in range(traffic.rounds):
        client.expect(traffic.size)
        client.wait()
        client.send(f"{UP}/{name}", blob)
        if number + 1 == traffic.rounds:
            client.say(f"{READY}/{name}/end")
    client.close()


def main() -> None:
    address, *numbers = sys.argv[1:5]
    rounds, agents, size = map(int, numbers)
    traffic = Traffic(rounds, agents, size)
    if len(sys.argv) > 5:
        answer_rounds(address, traffic, sys.argv[5])
    else:
        send_rounds(address, traffic)


if __name__ == "__main__":
    main()
