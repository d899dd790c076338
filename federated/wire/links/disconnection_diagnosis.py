"""Find out why a broker closes connections: it rejects a packet, another client uses the same name,
or it restarts.

A broker that only closes a connection accepts the next one, and usually keeps the client's
session. A client that cannot connect, or finds no session, therefore has a broker that restarts,
and the link waits for it. Some brokers keep no sessions: so a lost session alone does not excuse a
broker that closed connections at large packets.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from federated.wire.link import OVERHEAD

__all__ = ["MAX_UNACKNOWLEDGED", "RESTARTS", "RESTARTS_WITHIN", "SHORTS", "ConnectionHistory"]

# consecutive connections, each lost with messages in flight and none acknowledged: a packet may be
# too large
MAX_UNACKNOWLEDGED = 3
# consecutive connections shorter than SHORT seconds: another client may use the name
SHORT, SHORTS = 5.0, 5
TAKEOVER_WINDOW = 60.0  # seconds within which a second takeover by another client fails the link
RESTARTS, RESTARTS_WITHIN = 3, 60.0  # lost sessions in a number of seconds that lead to a warning
PAUSE = 60.0  # least seconds between two warnings


class ConnectionHistory:
    """The connections of a link. Each time `now` is in monotonic seconds.

    address: of the broker, for the messages.
    client_id: name of the link at the broker.
    tolerant: only warn of connections that end early, for a client that finds another one of its
        name by other means. Such connections suggest a rejected packet or another client of this
        name, but strangers who connect and hang up can make mosquitto before 2.0.19 close the
        connections of others, too (its pull request 3054).
    """

    def __init__(self, address: str, client_id: str, now: float, *, tolerant: bool = False) -> None:
        self._address, self._client_id, self._tolerant = address, client_id, tolerant
        self._unacknowledged, self._shorts, self._acknowledged, self._since = 0, 0, False, now
        self._suspicion = ""  # why the last connections ended early
        self._taken = -math.inf  # when another client of this name took over last
        self._restarts: deque[float] = deque(maxlen=RESTARTS)
        self._warned = -math.inf  # when the last warning was due

    def record_connection(self, resumed: bool, now: float) -> str:
        """Record a new connection, and return a warning if the broker keeps restarting or closing
        connections.

        resumed: whether the broker kept the session.
        """
        self._acknowledged, self._since, warning = False, now, ""
        if not resumed:
            self._shorts = 0
            self._restarts.append(now)
            first = self._restarts[0]
            if len(self._restarts) == RESTARTS and now - first <= RESTARTS_WITHIN:
                warning = (
                    f"{self._address}: the broker lost the session of '{self._client_id}' "
                    f"{RESTARTS} times in {now - first:.0f} s; it probably restarts: read its log, "
                    "and check its limits (memory, packets)"
                )
        if self._tolerant and self._suspicion:
            warning = self._suspicion
        if not warning or now - self._warned <= PAUSE:
            return ""
        self._warned = now
        return warning

    def record_acknowledgement(self) -> None:
        """Record that the broker accepted a message."""
        self._acknowledged, self._unacknowledged = True, 0

    def record_failure(self) -> None:
        """Record an attempt to connect that the broker did not answer. It clears what suggests a
        rejected packet or another client of this name.
        """
        self._unacknowledged = self._shorts = 0
        self._suspicion = ""

    def record_end(self, taken_over: bool, in_flight: Sequence[tuple[str, int]], now: float) -> str:
        """Record the end of a connection, and return the error if the link must not reconnect.

        taken_over: whether the broker says that another client took the name.
        in_flight: messages that the broker has not acknowledged: topic, bytes.
        """
        self._shorts = self._shorts + 1 if now - self._since < SHORT else 0
        # A broker that rejects smaller packets cannot serve a run at all.
        large = [one for one in in_flight if one[1] > OVERHEAD]
        self._unacknowledged = self._unacknowledged + 1 if large and not self._acknowledged else 0
        if taken_over and self._is_second_takeover(now):
            return (
                f"{self._address}: another client connected as '{self._client_id}' and "
                "replaced this one: give each client its own name (--name)"
            )
        self._suspicion = self._explain(large)
        return "" if self._tolerant else self._suspicion

    def _explain(self, large: Sequence[tuple[str, int]]) -> str:
        """Return why connections end early; empty if too few did.

        large: large messages in flight when the last one ended: topic, bytes.
        """
        if self._unacknowledged >= MAX_UNACKNOWLEDGED:
            topic, size = max(large, key=lambda one: one[1])
            return (
                f"{self._address}: the broker closed the connection {MAX_UNACKNOWLEDGED} times at "
                f"a packet of {size} bytes ({topic}): it may restart, or accept no packets of that "
                "size; lower wire.chunk, or raise the broker's limit (mosquitto: max_packet_size). "
                f"If another client is connected as '{self._client_id}', give each its own name "
                "(--name)"
            )
        if self._shorts >= SHORTS:
            return (
                f"{self._address}: the broker keeps closing the connection: read its log; if "
                f"another client is connected as '{self._client_id}', give each its own name "
                "(--name)"
            )
        return ""

    def _is_second_takeover(self, now: float) -> bool:
        """Return True if another client of this name took over twice in a minute: of two, the later
        one then stays. The earlier one of two coordinators leaves by itself after the first time.
        """
        last, self._taken = self._taken, now
        return now - last < TAKEOVER_WINDOW
