"""Rounds with hand-driven agents: lost tasks are sent again, hostile messages are refused, and
accepted updates stay.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from coordinator.access.broker_setup import BrokerAccess
from coordinator.fleet.message_loop import MessageLoop
from federated.errors import Refused
from federated.task import Task
from federated.wire import messages, topics
from federated.wire.chunks import slices
from federated.wire.links.memory import MemoryBroker
from tests.support.manual_clock import Clock
from tests.support.scripted_agent import (
    PROFILE,
    ScriptedAgent,
    collect,
    list_tasks,
    listen,
    run_turns,
    task,
    weights,
)
from tests.support.scripted_coordinator import SMALL


def test_a_lost_task_is_sent_again_to_an_idle_agent(
    fleet: MessageLoop, memory: MemoryBroker, clock: Clock
) -> None:
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    peer.link.unsubscribe(topics.command("r", "a"))

    def hear_late() -> None:
        peer.link.subscribe(topics.command("r", "a"))
        clock.now += 5
        peer.beat("idle")
        listen(fleet)
        heard = [m for m in peer.heard() if isinstance(m, Task)]
        assert [replace(m, lease=0.0) for m in heard] == [task("a")]
        peer.send(heard[0], weights())

    original = fleet.turn
    once = [hear_late]

    def turn(timeout: float) -> None:
        original(0)
        if once:
            once.pop()()

    fleet.turn = turn  # type: ignore[method-assign]
    assert len(collect(fleet, [task("a")])) == 1


def test_an_empty_or_too_large_offer_is_refused(fleet: MessageLoop, memory: MemoryBroker) -> None:
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    original, done = fleet.turn, []

    def turn(timeout: float) -> None:
        original(0)
        if not done:
            done.append(True)
            peer.say(
                messages.Offer(
                    messages.Manifest("t", 10**9, 2**18, "0" * 64), "r", 1, 1, "train", SMALL.name
                )
            )
            listen_raw()

    def listen_raw() -> None:
        for _ in range(50):
            original(0)

    fleet.turn = turn  # type: ignore[method-assign]
    assert collect(fleet, [task("a")]) == []
    outcome = list_tasks(fleet)["a"].outcome
    assert outcome.startswith("refused: update of a for w0.5-d2.2.2")
    assert "at most 1000000 bytes" in outcome
    with pytest.raises(Refused):
        fleet.inbox.open(
            "a",
            messages.Offer(
                messages.Manifest("t", 0, 2**18, "0" * 64), "r", 1, 1, "train", SMALL.name
            ),
            0.0,
        )


def test_an_accepted_update_cannot_be_overwritten_by_another_transfer_of_its_name(
    fleet: MessageLoop, memory: MemoryBroker
) -> None:
    """Each transfer has its own file, so that the update that was checked is the one that is
    folded.
    """
    first, second = ScriptedAgent(memory, "a"), ScriptedAgent(memory, "b")
    listen(fleet)
    original, done = fleet.turn, []

    def turn(timeout: float) -> None:
        original(0)
        if not done:
            done.append(True)
            second.send(task("b"), weights(2.0), transfer="same")
            for _ in range(50):
                original(0)
            second.send(task("b"), weights(np.nan), transfer="same")
            first.send(task("a"), weights(1.0), transfer="same")

    fleet.turn = turn  # type: ignore[method-assign]
    folded = [
        (update.agent, float(next(iter(update.tensors.values())).flat[0]))
        for update in collect(fleet, [task("a"), task("b")])
    ]
    assert folded == [("a", 1.0), ("b", 2.0)]


def test_an_update_that_is_damaged_while_it_waits_is_requested_again_and_folded_once(
    fleet: MessageLoop, memory: MemoryBroker, clock: Clock
) -> None:
    first, second = ScriptedAgent(memory, "a"), ScriptedAgent(memory, "b")
    listen(fleet)
    path = fleet.inbox.path(task("b").key)

    def rot() -> None:
        assert list_tasks(fleet)["b"].stage == "whole"
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x01")  # it was 0x3f, as in all weights of 1
        first.send(task("a"), weights(1.0))

    def send_again() -> None:
        assert list_tasks(fleet)["b"].stage == "asked"
        assert not path.exists()
        second.heard()
        clock.now += 5
        second.beat("idle")
        listen(fleet)
        (asked,) = (message for message in second.heard() if isinstance(message, Task))
        second.send(asked, weights(2.0), transfer="again")

    run_turns(fleet, [lambda: second.send(task("b"), weights(1.0)), rot, send_again])
    folded = [
        (update.agent, float(next(iter(update.tensors.values())).flat[0]))
        for update in collect(fleet, [task("a"), task("b")])
    ]
    assert folded == [("a", 1.0), ("b", 2.0)]


def test_an_update_that_never_matches_its_manifest_is_refused_and_not_awaited(
    fleet: MessageLoop, memory: MemoryBroker
) -> None:
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    data = bytes(5000)
    manifest = messages.Manifest("t", len(data), 2**18, "0" * 64)
    offer = messages.Offer(manifest, "r", 1, 1, "train", SMALL.name)
    (chunk,) = slices(manifest, data)
    run_turns(
        fleet,
        [
            lambda: peer.say(offer),
            *[lambda: peer.say(chunk, topics.chunk(topics.upload("r", "a", "t"), 0))] * 3,
        ],
    )
    assert collect(fleet, [task("a")]) == []
    assert (
        list_tasks(fleet)["a"].outcome == "refused: its bytes did not match its manifest, 3 times"
    )


def test_a_revoked_agent_is_ignored_not_asked_and_its_updates_are_not_folded(
    fleet: MessageLoop, memory: MemoryBroker
) -> None:
    first, second = ScriptedAgent(memory, "a"), ScriptedAgent(memory, "b")
    listen(fleet)
    original, done, broker_access = fleet.turn, [], BrokerAccess("")
    fleet.follow(broker_access=broker_access)

    def turn(timeout: float) -> None:
        original(0)
        if not done:
            done.append(True)
            # received whole, and waiting for the one before it
            second.send(task("b"), weights(2.0))
            for _ in range(50):
                original(0)
            assert list_tasks(fleet)["b"].stage == "whole"
            broker_access.barred = frozenset("b")
            first.send(task("a"), weights(1.0))

    fleet.turn = turn  # type: ignore[method-assign]
    assert [update.agent for update in collect(fleet, [task("a"), task("b")])] == ["a"]
    assert list_tasks(fleet)["b"].outcome == "refused: its certificate was revoked"
    second.beat()
    second.say(messages.Status("b", "s2", True), topics.status("r", "b"))
    listen(fleet)
    assert [a.name for a in fleet.list_ready()] == ["a"]
    assert not fleet.inbox.path(task("b").key).exists()
    broker_access.barred = frozenset()  # enrolled again
    second.say(messages.Status("b", "s3", True), topics.status("r", "b"))
    second.say(replace(PROFILE, agent="b"), topics.profile("r", "b"))
    listen(fleet)
    assert [a.name for a in fleet.list_ready()] == ["a", "b"]


def test_an_interrupted_round_does_not_abort_its_tasks(
    fleet: MessageLoop, memory: MemoryBroker
) -> None:
    """A resumed round continues with the same tasks."""
    peer = ScriptedAgent(memory, "a")
    listen(fleet)

    class Interrupt:
        def look(self) -> None:
            raise KeyboardInterrupt

    fleet.follow(Interrupt())
    with pytest.raises(KeyboardInterrupt):
        collect(fleet, [task("a")])
    assert [type(message) for message in peer.heard()] == [Task]
