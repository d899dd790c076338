"""Limit what a single agent can make the coordinator do: messages beyond the limits are dropped
before they are decoded.
"""

from __future__ import annotations

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

    def spend(self, agent: str, now: float) -> float:
        """Take a token from an agent, and return what is left."""
        left = self.left(agent, now) - 1
        self._spent[agent] = left, now
        return left

    def reset(self, agent: str) -> None:
        """Give an agent all its tokens back."""
        self._spent.pop(agent, None)


class FloodGuard:
    """Counts the heartbeats and the useless messages of each agent."""

    def __init__(self) -> None:
        self._beats = Allowance(BEATS, BEATS_AT_ONCE)
        self._useless = Allowance(USELESS, USELESS_AT_ONCE)
        self._refusals = Allowance(REFUSALS, REFUSALS_AT_ONCE)
        self._dropped = Allowance(DROPPED, DROPPED_AT_ONCE)

    def admit_beat(self, agent: str, now: float) -> bool:
        """Return whether to handle a heartbeat."""
        return self._beats.left(agent, now) >= 1 and self._beats.spend(agent, now) >= 0

    def admit_refusal(self, agent: str, now: float) -> bool:
        """Return whether to answer an invalid message."""
        return self._refusals.left(agent, now) >= 1 and self._refusals.spend(agent, now) >= 0

    def admit(self, agent: str, now: float) -> bool:
        """Return whether to handle another message: False after too many useless ones."""
        return self._useless.left(agent, now) >= 1

    def count_useless(self, agent: str, now: float) -> bool:
        """Count a useless message. Return True if further messages are dropped from now on."""
        return 0 <= self._useless.spend(agent, now) < 1

    def count_dropped(self, agent: str, now: float) -> bool:
        """Count a dropped message. Return True if there were too many, so that the broker should
        stop them; the count then restarts.
        """
        if self._dropped.spend(agent, now) >= 0:
            return False
        self._dropped.reset(agent)
        return True
