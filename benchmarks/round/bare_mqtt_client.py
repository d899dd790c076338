"""Move the bytes of rounds with MQTT clients that do nothing else: the floor of a round's time.

`python -m benchmarks.round.bare_mqtt_client HOST:PORT FOLDER ROUNDS AGENTS SIZE` is the sender: it
sends SIZE bytes to all agents, in chunks, and receives as much from each, in turns of FOLDER. With
the name of an agent as a sixth argument it is that agent.

Receivers confirm chunks, and senders keep few chunks in flight: the embedded broker silently drops
messages that a slow client has not read yet once a pattern's log exceeds 48 MiB.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.round.turns import Turns
from federated.wire.link import CHUNK

__all__ = ["Client", "Traffic", "answer_rounds", "main", "send_rounds"]

DOWN, UP, READY = "bare/down", "bare/up", "bare/ready"
CONFIRMED = {DOWN: "bare/confirmed-down", UP: "bare/confirmed-up"}
KEEPALIVE = 600  # seconds, for a machine with other work
SILENCE = 900.0  # seconds after which a client stops waiting
WINDOW = 128  # chunks in flight in each direction: 32 MiB
PARTS = 4  # confirmations of a window


@dataclass(frozen=True)
class Traffic:
    """What moves.

    rounds: number of rounds.
    agents: number of agents; more than `WINDOW` may send more than the embedded broker keeps.
    size: bytes to each agent, and from each.
    """

    rounds: int
    agents: int
    size: int

    @property
    def chunks(self) -> int:
        """Chunks to each agent in a round, and from each."""
        return -(-self.size // CHUNK)

    def window(self, direction: str) -> int:
        """Return the chunks that one sender may have in flight."""
        return WINDOW if direction == DOWN else max(1, WINDOW // self.agents)

    def step(self, direction: str) -> int:
        """Return the received chunks that one confirmation stands for."""
        return max(1, self.window(direction) // PARTS)


class Client:
    """A client that counts messages by their topic without its last level, and confirms chunks."""

    def __init__(self, address: str, name: str, patterns: Sequence[str], traffic: Traffic) -> None:
        self.name, self.traffic = name, traffic
        self._counts, self._changed = Counter[str](), threading.Condition()
        self._enough: Callable[[], bool] = lambda: False
        self._problem, self._subscribed = "", False
        host, _, port = address.rpartition(":")
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"bare-{name}")
        self._client.max_queued_messages_set(0)  # no limit
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_subscribe
        self._client.on_disconnect = self._on_disconnect
        self._client.connect(host, int(port), keepalive=KEEPALIVE)
        self._client.loop_start()
        self._client.subscribe([(pattern, 1) for pattern in patterns])
        self.wait(lambda: self._subscribed)

    def count(self, parent: str) -> list[int]:
        """Return the number of messages at each topic below another one."""
        return [n for topic, n in list(self._counts.items()) if topic.startswith(f"{parent}/")]

    def has(self, parent: str, most: int) -> bool:
        """Return True if so many messages arrived at the topics below another one."""
        return sum(self.count(parent)) >= most

    def wait(self, enough: Callable[[], bool]) -> None:
        """Wait for a condition on what arrived. Raises ConnectionError, TimeoutError."""
        with self._changed:
            self._enough = enough
            met = self._changed.wait_for(lambda: self._problem or enough(), SILENCE)
        if self._problem:
            raise ConnectionError(self._problem)
        if not met:
            raise TimeoutError(f"{self.name}: {dict(self._counts)} messages in {SILENCE:.0f} s")

    def send(self, direction: str, blob: memoryview, round: int) -> None:
        """Send the chunks of a round, and wait until the broker has the last one."""
        traffic = self.traffic
        window, step = traffic.window(direction), traffic.step(direction)
        receivers = traffic.agents if direction == DOWN else 1

        def has_room() -> bool:
            confirmed = self.count(CONFIRMED[direction])
            return sent - step * (min(confirmed) if len(confirmed) == receivers else 0) < window

        for index in range(traffic.chunks):
            sent = round * traffic.chunks + index
            if not has_room():
                self.wait(has_room)
            chunk = bytes(blob[index * CHUNK : (index + 1) * CHUNK])
            info = self._client.publish(f"{direction}/{self.name}/{index}", chunk, qos=1)
        info.wait_for_publish(SILENCE)

    def say(self, topic: str) -> None:
        self._client.publish(f"{topic}/{self.name}/0", b"1", qos=1)

    def close(self) -> None:
        self._client.on_disconnect = None
        self._client.disconnect()
        self._client.loop_stop()

    # ---- in the network's thread -----------------------------------------------------------------

    def _on_subscribe(self, *_: Any) -> None:
        with self._changed:
            self._subscribed = True
            self._changed.notify()

    def _on_disconnect(self, *reported: Any) -> None:
        # the library connects again, but without the subscriptions
        with self._changed:
            self._problem = f"{self.name}: disconnected by the broker: {reported[3]}"
            self._changed.notify()

    def _on_message(self, client: mqtt.Client, _: Any, message: mqtt.MQTTMessage) -> None:
        topic = message.topic.rpartition("/")[0]
        with self._changed:
            self._counts[topic] += 1
            count = self._counts[topic]
            if self._enough():
                self._changed.notify()
        direction, _, sender = topic.rpartition("/")
        if direction == DOWN and count % self.traffic.step(DOWN) == 0:
            self.say(CONFIRMED[DOWN])
        elif direction == UP and count % self.traffic.step(UP) == 0:
            client.publish(f"{CONFIRMED[UP]}/{sender}/0", b"1", qos=1)


def send_rounds(
    address: str, turns: Turns, traffic: Traffic, listening: Callable[[], object]
) -> None:
    """Send and receive all rounds. listening: called once agents may begin."""
    blob, agents = memoryview(bytes(traffic.size)), traffic.agents
    patterns = [f"{topic}/#" for topic in (UP, READY, CONFIRMED[DOWN])]
    hub = Client(address, "hub", patterns, traffic)
    listening()
    hub.wait(partial(hub.has, READY, agents))
    for round in range(traffic.rounds):
        turns.begin()
        hub.send(DOWN, blob, round)
        hub.wait(partial(hub.has, UP, (round + 1) * agents * traffic.chunks))
        turns.end()
    hub.close()


def answer_rounds(address: str, traffic: Traffic, name: str) -> None:
    """Receive and send all rounds as an agent."""
    blob = memoryview(bytes(traffic.size))
    client = Client(address, name, (f"{DOWN}/#", f"{CONFIRMED[UP]}/{name}/#"), traffic)
    client.say(READY)
    for round in range(traffic.rounds):
        most = (round + 1) * traffic.chunks
        client.wait(partial(client.has, DOWN, most))
        client.send(UP, blob, round)
    client.close()


def main() -> None:
    address, folder, *numbers = sys.argv[1:6]
    rounds, agents, size = map(int, numbers)
    traffic = Traffic(rounds, agents, size)
    if len(sys.argv) > 6:
        answer_rounds(address, traffic, sys.argv[6])
    else:
        listening = partial(print, "listening", flush=True)
        send_rounds(address, Turns(Path(folder)), traffic, listening)


if __name__ == "__main__":
    main()
