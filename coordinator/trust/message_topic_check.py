"""Check that a message belongs on the topic on which it arrived. Imports no PyTorch."""

from __future__ import annotations

from federated.errors import Refused
from federated.wire import topics
from federated.wire.messages import Chunk, Heartbeat, Message

__all__ = ["check_place"]


def check_place(message: Message, where: topics.Place) -> None:
    """Check that a message belongs on its topic: heartbeats and chunks have topics of their own,
    since their limits differ. Raises Refused.
    """
    name = where.agent
    if (claimed := getattr(message, "agent", name)) != name:
        raise Refused(f"a message of '{claimed}' arrived on a topic of '{name}'")
    chunk = isinstance(message, Chunk)
    if chunk != (where.kind == "chunk") or (
        where.kind == "hb" and not isinstance(message, Heartbeat)
    ):
        raise Refused(f"agents do not send {type(message).__name__} on this topic")
    if isinstance(message, Chunk) and (message.transfer, message.index) != (
        where.transfer,
        where.index,
    ):
        raise Refused(
            f"chunk {message.index} of {message.transfer} arrived on the topic of chunk "
            f"{where.index} of {where.transfer}"
        )
