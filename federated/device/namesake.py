"""Two agents with the same name: the older one leaves.

Both subscribe to the status topic of their name, where each publishes its session when it joins
(its birth). The broker orders all births. So a status that arrives before the agent's own birth is
older than the agent, and one that arrives afterwards is newer. A disconnection proves nothing: a
broker that identifies clients by name disconnects the first when the second connects, but a bad
network looks the same, and a broker that identifies clients by certificate keeps both.

A status that the broker retained while the agent was offline proves less: a broker that restarts
from a backup may retain the status of an earlier process. So the agent publishes its birth again,
which replaces that status, and stays. A real namesake receives that birth and leaves, or tells the
agent to leave, or was disconnected by the agent's return and publishes its own birth within 1 to
2 s. An agent that finds the same namesake twice, with a birth of its own in between, leaves.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from federated.wire.messages import Status

__all__ = ["ANSWERS", "Namesake", "Verdict", "hear"]

Verdict: TypeAlias = Literal["", "stay", "leave"]

# births published to a namesake that does not leave; after that, births seem to get lost, and the
# order of the sessions decides
ANSWERS = 3


class Namesake(Struct, frozen=True):
    """The other agents with an agent's name, by the sessions of their processes.

    born: whether its own birth came back from the broker.
    returned: whether it has lost its connection since it joined.
    older: sessions that joined before it.
    found: sessions whose status the broker had retained when it returned.
    replaced: those of `found` that a birth of its own has replaced since.
    answers: number of times that it told an older one to leave.
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
    """Handle a status of the agent's name. Return the new state, and whether the agent leaves, or
    stays and tells the other one to leave.
    """
    if status.session == session:
        if status.online and not retained:  # neither its last will nor a retained status
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
