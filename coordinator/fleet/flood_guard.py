"""Limit what a single agent can make the coordinator do: messages beyond the limits are dropped
before they are decoded. New chunks and answers to tasks have no limit here, because the coordinator
asked for them.
"""

from __future__ import annotations

__all__ = ["BEATS_AT_ONCE", "MESSAGES_AT_ONCE", "REFUSALS_AT_ONCE", "SIZE", "FloodGuard"]

# heartbeats and repeated chunks per second and agent, and how many may come at once. Others follow
# a dropped heartbeat, and the answer to an offer lists the chunks that arrived.
BEATS, BEATS_AT_ONCE = 20.0, 200.0
# tokens per second and agent for all other messages, and how many may be spent at once. A message
# costs one, and another for every SIZE bytes. An agent sends about five such messages when its link
# or the coordinator returns (two statuses, a profile, and an offer for each finished update), and
# repeats an offer at most once in five seconds.
MESSAGES, MESSAGES_AT_ONCE = 5.0, 300.0
SIZE = 16 << 10
# answers to invalid messages per second and agent, and how many may be sent at once: each waits for
# the broker, which a flood keeps busy
REFUSALS, REFUSALS_AT_ONCE = 1.0, 20.0
# dropped messages per second and agent, and how many may come at once, until it is suspended; the
# same for their bytes. When a task is aborted, up to 32 chunks of 256 KiB are dropped.
DROPPED, DROPPED_AT_ONCE = 200.0, 2000.0
DROPPED_BYTES, DROPPED_BYTES_AT_ONCE = 8e6, 128e6


class Allowance:
    """Tokens of each agent, which refill with time (a token bucket)."""

    def __init__(self, rate: float, most: float) -> None:
        """rate: tokens per second. most: tokens of an agent that has spent none lately."""
        self._rate, self._most = rate, most
        self._spent: dict[str, tuple[float, float]] = {}  # tokens left, and at what time

    def left(self, agent: str, now: float) -> float:
        """Return the agent's tokens; fewer than none if it spent more than it had."""
        tokens, before = self._spent.get(agent, (self._most, now))
        return min(self._most, tokens + self._rate * max(0.0, now - before))

    def spend(self, agent: str, now: float, tokens: float = 1.0) -> float:
        """Take tokens from an agent, and return what is left."""
        left = self.left(agent, now) - tokens
        self._spent[agent] = left, now
        return left

    def reset(self, agent: str) -> None:
        """Give an agent all its tokens back."""
        self._spent.pop(agent, None)


class FloodGuard:
    """Counts the messages of each agent."""

    def __init__(self) -> None:
        self._beats = Allowance(BEATS, BEATS_AT_ONCE)
        self._messages = Allowance(MESSAGES, MESSAGES_AT_ONCE)
        self._refusals = Allowance(REFUSALS, REFUSALS_AT_ONCE)
        self._dropped = Allowance(DROPPED, DROPPED_AT_ONCE)
        self._dropped_bytes = Allowance(DROPPED_BYTES, DROPPED_BYTES_AT_ONCE)

    def admit_beat(self, agent: str, now: float) -> bool:
        """Return whether to handle a heartbeat or a repeated chunk."""
        return self._beats.left(agent, now) >= 1 and self._beats.spend(agent, now) >= 0

    def admit_refusal(self, agent: str, now: float) -> bool:
        """Return whether to answer an invalid message."""
        return self._refusals.left(agent, now) >= 1 and self._refusals.spend(agent, now) >= 0

    def admits(self, agent: str, now: float) -> bool:
        """Return whether to handle another message of an agent."""
        return self._messages.left(agent, now) >= 1

    def charge(self, agent: str, size: int, now: float) -> None:
        """Take the tokens for a message of `size` bytes."""
        self._messages.spend(agent, now, 1 + size // SIZE)

    def refund(self, agent: str, size: int, now: float) -> None:
        """Give back the tokens of a message that the coordinator asked for."""
        self._messages.spend(agent, now, -(1 + size // SIZE))

    def count_dropped(self, agent: str, size: int, now: float) -> bool:
        """Count a dropped message. Return True if there were too many or too large ones, so that
        the broker should stop them; the counts then restart.
        """
        messages = self._dropped.spend(agent, now)
        if self._dropped_bytes.spend(agent, now, size) >= 0 and messages >= 0:
            return False
        self._dropped.reset(agent)
        self._dropped_bytes.reset(agent)
        return True
