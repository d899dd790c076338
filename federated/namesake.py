"""Two agents of one name: which of them stays. Both hear the topic of their one status, where each says who it is by its session.

A broker that knows clients by the name throws the first out when the second comes; one that knows them by their certificates has both. Some
brokers say why they hang up, others only close the connection, which is also what a bad network does: so it is the status that tells. The
broker puts all births in one order, and keeps the last one. What an agent hears before its own birth is older than itself: an earlier life
of the same device, or a namesake, which is to leave. What it hears later came after it: then it leaves. So the newer stays.

What a broker kept, and an agent finds when it comes back from a lost connection, proves less: a broker that restarts from what it saved
may keep an earlier life that this one never heard of. The agent says its birth anew, which takes that place, and stays in any case where nobody
is. A namesake that hears of this birth tells the agent to leave, or leaves where it did not know of it. One that was thrown out by its return comes
back in 1 to 2 s and says its own birth: who finds somebody twice, with a birth of its own between, leaves.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from federated.wire.messages import Status

__all__ = ["ANSWERS", "Namesake", "Verdict"]

Verdict: TypeAlias = Literal["", "stay", "leave"]

ANSWERS = 3  # to namesakes that do not leave: then their births got lost on the way, and the order of sessions decides


class Namesake:
    """What an agent knows of others of its name, by the sessions of their lives."""

    def __init__(self, session: str) -> None:
        self.session = session
        self._born = False  # whether its own birth came back
        self._returned = False  # whether it lost its connection since
        self._older: set[str] = set()
        self._found: set[str] = set()  # kept by the broker when it returned
        self._replaced: set[str] = set()  # of these, whose place a birth of its own took since
        self._answers = 0

    def returned(self) -> None:
        """The connection is back; the retained status, asked for again, says whether somebody came meanwhile."""
        self._returned = True

    def hear(self, status: Status, *, retained: bool) -> Verdict:
        """What a status of this name means: nothing, that another of this name is to be told to leave, or that this one is to leave."""
        if status.session == self.session:
            self._come_back(status, retained=retained)
            return ""
        if not self._born or (retained and not self._returned):
            self._older.add(status.session)
            return ""
        if not status.online:
            return ""
        if status.session in self._older:
            return "" if retained else self._answer(status.session)
        if retained and status.session not in self._replaced:
            self._found.add(status.session)
            return ""
        return "leave"

    def _come_back(self, status: Status, *, retained: bool) -> None:
        """Hears its own word: a birth, if it is no will and nothing that the broker kept."""
        if status.online and not retained:
            self._born = True
            self._replaced |= self._found

    def _answer(self, session: str) -> Verdict:
        self._answers += 1
        return "leave" if self._answers > ANSWERS and self.session < session else "stay"
