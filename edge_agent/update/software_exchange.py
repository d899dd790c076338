"""Ask the broker which version a run wants on this device, and report what this device did.

`edge-agent update --wanted` starts this module as the user of the agent's service, so that no
process of root reads messages or this user's files.

    python -I -m edge_agent.update.software_exchange <QUESTION
"""

from __future__ import annotations

import secrets
import sys
import time
from contextlib import closing
from dataclasses import replace

import msgspec

from edge_agent.access.agent_name import derive_name
from edge_agent.access.broker_credentials import resolve_broker
from edge_agent.join.participation import find_run
from federated.errors import EspalierError, UsageError, WireError
from federated.wire import envelope, topics
from federated.wire.field_types import AgentName, Name, SoftwareOrNone
from federated.wire.link import Link
from federated.wire.links.catalogue import open_link
from federated.wire.release_messages import (
    Installed,
    Software,
    SoftwareCard,
    find_wanted,
)

__all__ = ["Answer", "Question", "exchange"]

WAIT = 20.0  # seconds to find a run
SETTLE = 2.0  # seconds in which a retained card arrives


class Question(msgspec.Struct, frozen=True):
    """What this device asks.

    broker, run, name: empty as for `edge-agent doctor`.
    report: what it did; None: nothing to report.
    """

    broker: str = ""
    run: str = ""
    name: str = ""
    report: Installed | None = None


class Answer(msgspec.Struct, frozen=True):
    """What a run wants on this device.

    run: its name.
    agent: name of this device's agent.
    wanted: the version; None: any.
    withdrawn: name of the version that was rolled back last.
    """

    run: Name
    agent: AgentName
    wanted: Software | None = None
    withdrawn: SoftwareOrNone = ""


def exchange(asked: Question) -> Answer:
    """Publish the report, with the agent's name, and return what the run wants. Raises
    EspalierError.
    """
    broker, name = resolve_broker(asked.broker or None, asked.name or None)
    if broker is None:
        raise UsageError("--broker is missing: this device is enrolled at none")
    agent = name or derive_name()
    with closing(open_link(broker, f"update-{agent[:40]}-{secrets.token_hex(3)}")) as link:
        run = find_run(link, asked.run or None, WAIT).run
        if asked.report is not None:
            said = envelope.encode(replace(asked.report, agent=agent))
            link.publish(topics.serving(run, agent, "software"), said, retain=True)
        card = read_card(link, run)
    return Answer(run, agent, find_wanted(card, agent), card.withdrawn)


def read_card(link: Link, run: str) -> SoftwareCard:
    """Return the run's card of wanted software; an empty one if it has none. Raises LinkError."""
    topic = topics.release_card(run, "software")
    link.subscribe(topic)
    deadline = time.monotonic() + SETTLE
    while (left := deadline - time.monotonic()) > 0:
        delivery = link.receive(left)
        if delivery is None or delivery.topic != topic:
            continue
        try:
            message = envelope.decode(delivery.payload) if delivery.payload else None
        except WireError:
            continue
        if isinstance(message, SoftwareCard) and message.run == run:
            return message
    return SoftwareCard(run)


def main() -> None:
    """Read a question, and print the answer, or exit with an error."""
    try:
        asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
        print(msgspec.json.encode(exchange(asked)).decode())
    except EspalierError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
