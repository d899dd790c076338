"""Two agents of one name: which of them stays. Both hear the topic of their one status, where each
says who it is by its session.

The newer stays. The broker puts all births in one order and keeps the last one, so a status that an
agent hears before its own birth is older than the agent, and one that it hears afterwards is newer.
The status decides because nothing else does: a broker that knows clients by name disconnects the
first when the second connects, but a bad network looks the same, and a broker that knows them by
certificate keeps both.

A status that the broker kept while an agent was away proves less: a broker that restarts from what
it saved may keep an earlier life that the agent never heard of. So the agent says its birth again,
which replaces that status, and stays. If there is a namesake, it hears that birth and leaves, or
tells the agent to leave, or is disconnected by the agent's return and says its own birth within 1
to 2 s. An agent that finds the same namesake twice, with a birth of its own in between, leaves.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from federated.wire.messages import Status

__all__ = ["ANSWERS", "Namesake", "Verdict", "hear"]

Verdict: TypeAlias = Literal["", "stay", "leave"]

# to namesakes that do not leave; then their births get lost on the way, and the order of sessions
# decides
ANSWERS = 3


class Namesake(Struct, frozen=True):
    """What an agent knows of others of its name, by the sessions of their processes.

    born: its own birth came back from the broker.
    returned: it lost its connection since it joined.
    older: sessions that were born before it.
    found: sessions that the broker kept when it returned.
    replaced: sessions of these that a birth of its own has replaced since.
    answers: how often it told an older one to leave.
    """

    born: bool = False
    returned: bool = False
    older: frozenset[str] = frozenset()
    found: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    answers: int = 0


def hear(
    known: Namesake, session: str, status: Status, *, retained: bool
) -> tuple[Namesake, Verdict]:
    """What an agent of this session learns from a status of its name, and whether it leaves, or
    stays and tells the other one to leave.
    """
    if status.session == session:
        if status.online and not retained:  # neither its will nor what the broker kept
            known = replace(known, born=True, replaced=known.replaced | known.found)
        return known, ""
    if not known.born or (retained and not known.returned):
        return replace(known, older=known.older | {status.session}), ""
    if not status.online or (retained and status.session in known.older):
        return known, ""
    if status.session in known.older:
        known = replace(known, answers=known.answers + 1)
        return known, "leave" if known.answers > ANSWERS and session < status.session else "stay"
    if retained and status.session not in known.replaced:
        return replace(known, found=known.found | {status.session}), ""
    return known, "leave"
