"""Check what this device may do at the broker, and the coordinator: run, rights, and an echo.

What the checks publish reaches only this device, except the request for an echo.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from edge_agent.doctor.device_checks import check_skew
from federated.errors import ProtocolMismatch, WireError
from federated.wire import envelope, messages, topics
from federated.wire.checks import request_client
from federated.wire.checks.check_result import Check, report_error
from federated.wire.checks.network_checks import NO_RIGHTS, format_elapsed
from federated.wire.checks.request_client import Client

__all__ = ["check_coordinator", "check_isolation", "check_rights", "find_card"]

RIGHTS = (
    "the broker must authenticate this device by its agent's name: connect with the user or "
    "certificate of that name (--name), and use %u in the broker's rights; in a run with "
    "certificates of a company's authority, the coordinator's operator must register the name "
    "(coordinator register NAME)"
)


class Requester(Protocol):
    """A connection that waits for each answer; see Client."""

    def publish(self, topic: str, payload: bytes, /) -> str: ...
    def subscribe(self, pattern: str) -> str: ...
    def receive(self, topic: str, timeout: float | None = None) -> bytes | None: ...


def find_card(client: Requester, run: str | None) -> tuple[messages.Run | None, Check]:
    """Find the card of the run to join among the broker's retained messages."""
    if refusal := client.subscribe(topics.run(run) if run else topics.any_run()):
        return None, Check(
            "run", "fail", f"the broker denies this device the topic of runs ({refusal})", RIGHTS, 5
        )
    cards: dict[str, messages.Run] = {}
    wait = request_client.TIMEOUT / 2
    while (payload := client.receive("", wait)) is not None:
        try:
            message = envelope.decode(payload) if payload else None
        except ProtocolMismatch as error:
            return None, replace(report_error("run", error), exit=6)
        except WireError:
            continue
        if isinstance(message, messages.Run):
            cards[message.run], wait = message, 0.5
    if not cards:
        return None, Check(
            "run",
            "warn",
            f"no run named '{run}'" if run else "no run",
            "start a coordinator (coordinator start --broker ...), or name its run with --run; "
            "checks that need a run are skipped",
        )
    if len(cards) > 1:
        return None, Check(
            "run", "fail", f"several runs: {', '.join(sorted(cards))}", "choose one with --run", 6
        )
    card = next(iter(cards.values()))
    return card, Check("run", "ok", f"'{card.run}': {card.method}, {card.model}")


def check_rights(client: Requester, run: str, name: str) -> Check:
    """Check that this device can publish on its own topics and receive its commands."""
    own, word, start = topics.probe(run, name), secrets.token_bytes(8), time.perf_counter()
    if refusal := client.subscribe(own) or client.publish(own, word):
        problem = f"'{name}' may not use its own topics ({refusal})"
    elif client.receive(own) != word:
        problem = f"messages that '{name}' publishes on its own topics do not arrive"
    elif refusal := client.subscribe(topics.command(run, name)):
        problem = f"'{name}' may not receive its commands ({refusal})"
    else:
        return Check(
            "rights",
            "ok",
            f"'{name}' publishes and receives on its own topics ({format_elapsed(start)})",
        )
    return Check("rights", "fail", problem, RIGHTS, 5)


def check_isolation(client: Client, run: str) -> Check:
    """Check that the broker prevents this device from publishing for another agent. The messages
    reach only this device.
    """
    other, word = topics.probe(run, f"doctor-{secrets.token_hex(4)}"), secrets.token_bytes(8)
    client.subscribe(other)
    refusal = client.publish(other, word)
    arrived = not refusal and client.receive(other, request_client.TIMEOUT / 2) is not None
    if refusal or not (arrived or client.protocol == 5):
        return Check(
            "strangers",
            "ok",
            f"the broker separates the topics of agents ({refusal or 'nothing arrived'})",
        )
    return Check("strangers", "warn", "any client may publish under another's name", NO_RIGHTS)


def check_coordinator(client: Requester, run: str, name: str) -> Iterator[Check]:
    """Check that the coordinator answers this device, and compare the clocks."""
    sent, start = time.time(), time.perf_counter()
    echo = envelope.encode(messages.Echo(name, sent))
    if refusal := client.publish(topics.say(run, name), echo):
        yield Check(
            "coordinator",
            "fail",
            f"'{name}' may not publish to the coordinator ({refusal})",
            RIGHTS,
            5,
        )
        return
    deadline, command = time.monotonic() + request_client.TIMEOUT, topics.command(run, name)
    while (payload := client.receive(command, deadline - time.monotonic())) is not None:
        try:
            answer = envelope.decode(payload)
        except WireError:
            continue
        if isinstance(answer, messages.Echo) and answer.sent == sent:
            round_trip = time.perf_counter() - start
            yield Check("coordinator", "ok", f"it answers ({round_trip * 1000:.0f} ms)")
            yield check_skew(answer.time - (sent + round_trip / 2), round_trip)
            return
    yield Check(
        "coordinator",
        "warn",
        f"no answer within {request_client.TIMEOUT:.0f} s",
        "it may be busy or stopped: run coordinator status on its machine",
    )
