"""The broker of last resort, for machines without mosquitto: amqtt in a process of its own, `python -m coordinator.embedded SETTINGS`.

For demonstrations and small fleets: it speaks MQTT 3.1.1 only, keeps nothing on disk, and needs ten times the processor time of
mosquitto. What is set here works around what it does by default: sessions of anonymous clients would queue nothing while a link is
down, and debug messages would be put together for every packet although nobody reads them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from amqtt.broker import Broker
from amqtt.contexts import Action
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session

from coordinator import passwords
from coordinator.mosquitto import COORDINATOR
from federated.wire import topics

__all__ = ["Gate", "Rights", "configuration", "may", "serve"]

EXPIRY = 3600  # seconds that the session of a link that is down is kept
USERS: dict[str, str] = {}  # user -> hash; none: everyone may come in


class Gate(BaseAuthPlugin):  # type: ignore[misc]  # amqtt has no types
    """Lets in who has a password in USERS, or everyone where nobody has; as users, whose sessions outlive their links."""

    async def authenticate(self, *, session: Session) -> bool:
        if not USERS:
            return True
        entry = USERS.get(session.username or "")
        return entry is not None and passwords.verify(session.password or "", entry)


class Rights(BaseTopicPlugin):  # type: ignore[misc]  # amqtt has no types
    """Where users have passwords, each may do what an agent of the user's name may do, and the coordinator everything."""

    async def topic_filtering(self, *, session: Session | None = None, topic: str | None = None, action: Action | None = None) -> bool:
        return not USERS or (session is not None and may(session.username or "", action or Action.PUBLISH, topic or ""))


def may(user: str, action: Action, topic: str) -> bool:
    """Whether a user may publish to a topic, or hear all that a pattern stands for."""
    if user == COORDINATOR:
        return True
    wanted = "write" if action == Action.PUBLISH else "read"
    return any(access == wanted and topics.matches(pattern.replace("%u", user), topic) for access, pattern in topics.agent_rights())


def configuration(listen: str, port: int) -> dict[str, Any]:
    host = f"[{listen}]" if ":" in listen else listen
    return {
        "listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}", "max_connections": 0}},
        "session_expiry_interval": EXPIRY,
        "plugins": {f"{plugin.__module__}.{plugin.__name__}": {} for plugin in (Gate, Rights)},
    }


async def serve(listen: str, port: int) -> None:
    """Serves until SIGTERM."""
    broker = Broker(configuration(listen, port))
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    await broker.start()
    await over.wait()
    await broker.shutdown()


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    if settings["passwords"]:
        USERS.update(passwords.read(Path(settings["passwords"])))
    asyncio.run(serve(settings["listen"], settings["port"]))


if __name__ == "__main__":
    main()
