"""Limits of what a single agent can make the coordinator do: messages beyond them are dropped
before they are decoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["REFUSALS_AT_ONCE", "FloodGuard"]

# heartbeats per second and agent, and how many may come at once. Others follow a dropped one.
BEATS, BEATS_AT_ONCE = 20.0, 200.0
# messages per second and agent that are invalid or unrequested, and how many may come at once.
# Agents send such messages after a restart or a lost answer, some for each task.
USELESS, USELESS_AT_ONCE = 10.0, 200.0
# answers to invalid messages per second and agent, and how many may be sent at once: each waits for
# the broker, which a flood keeps busy
REFUSALS, REFUSALS_AT_ONCE = 1.0, 20.0
# dropped messages per second and agent, and how many may come at once, until it is suspended
DROPPED, DROPPED_AT_ONCE = 200.0, 5000.0


@dataclass
class Bucket:
    """Tokens that refill with time.

    tokens: now available
    filled: time of the last refill, in the coordinator's seconds
    """

    tokens: float
    filled: float

    def refill(self, now: float, rate: float, most: float) -> None:
        self.tokens = min(most, self.tokens + rate * max(0.0, now - self.filled))
        self.filled = now

    def take(self, now: float, rate: float, most: float) -> bool:
        """Refill, and return whether there was a token, which is then taken."""
        self.refill(now, rate, most)
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


@dataclass
class FloodGuard:
    """Counts the heartbeats and the useless messages of each agent."""

    _dropped: dict[str, Bucket] = field(default_factory=dict)
    _beats: dict[str, Bucket] = field(default_factory=dict)
    _useless: dict[str, Bucket] = field(default_factory=dict)
    _refusals: dict[str, Bucket] = field(default_factory=dict)

    def admit_beat(self, agent: str, now: float) -> bool:
        """Return whether to handle a heartbeat."""
        bucket = self._beats.setdefault(agent, Bucket(BEATS_AT_ONCE, now))
        return bucket.take(now, BEATS, BEATS_AT_ONCE)

    def admit_refusal(self, agent: str, now: float) -> bool:
        """Return whether to answer an invalid message."""
        bucket = self._refusals.setdefault(agent, Bucket(REFUSALS_AT_ONCE, now))
        return bucket.take(now, REFUSALS, REFUSALS_AT_ONCE)

    def admit(self, agent: str, now: float) -> bool:
        """Return whether to handle another message: False after too many useless ones."""
        bucket = self._useless.get(agent)
        if bucket is None:
            return True
        bucket.refill(now, USELESS, USELESS_AT_ONCE)
        return bucket.tokens >= 1.0

    def count_useless(self, agent: str, now: float) -> bool:
        """Count a useless message. Return whether further messages are dropped from now on."""
        bucket = self._useless.setdefault(agent, Bucket(USELESS_AT_ONCE, now))
        bucket.tokens -= 1.0
        return 0.0 <= bucket.tokens < 1.0

    def count_dropped(self, agent: str, now: float) -> bool:
        """Count a dropped message. Return whether they are so many that the broker should stop
        them; the count then starts again.
        """
        bucket = self._dropped.setdefault(agent, Bucket(DROPPED_AT_ONCE, now))
        bucket.refill(now, DROPPED, DROPPED_AT_ONCE)
        bucket.tokens -= 1.0
        if bucket.tokens >= 0.0:
            return False
        del self._dropped[agent]
        return True
