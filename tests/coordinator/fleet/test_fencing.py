"""Two coordinators of one run: the later one leads, and the earlier one leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.access.broker_setup import BrokerAccess
from coordinator.fleet.coordinator_takeover import CARD_PATIENCE, FENCE
from coordinator.fleet.message_loop import MessageLoop
from coordinator.fleet.update_reception import Intake
from federated.errors import Superseded
from federated.wire import envelope, messages, topics
from federated.wire.link import LINK_UP, Delivery
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.manual_clock import Clock
from tests.support.scripted_agent import ScriptedAgent, collect, listen, task
from tests.support.scripted_coordinator import CARD


def coordinator(
    broker: MemoryBroker, folder: Path, clock: Clock, session: str, epoch: int
) -> MessageLoop:
    """Return a coordinator of run 'r' that has announced itself."""
    fleet = MessageLoop(
        MemoryLink(broker, f"coordinator-{session}"),
        replace(CARD, session=session),
        folder / session,
        Intake(epoch=epoch),
        clock=clock,
    )
    fleet.endpoint.announce()
    return fleet


def read_retained(broker: MemoryBroker) -> tuple[messages.Run, int]:
    """Return the retained card and its epoch."""
    link = MemoryLink(broker, "reader")
    link.subscribe(topics.run("r"))
    delivery = link.receive(0)
    assert delivery is not None
    card, epoch = envelope.decode_with_epoch(delivery.payload)
    assert isinstance(card, messages.Run)
    return card, epoch


def read_card(broker: MemoryBroker) -> tuple[str, int]:
    """Return the session and the epoch of the retained card."""
    card, epoch = read_retained(broker)
    return card.session, epoch


def read_batch(broker: MemoryBroker) -> int:
    """Return the batch size of the retained card."""
    return read_retained(broker)[0].batch


def lead(fleet: MessageLoop, broker: MemoryBroker) -> None:
    """Make a coordinator ask an agent."""
    ScriptedAgent(broker, "a")
    listen(fleet)
    collect(fleet, [task("a")], limit=0.0)


def test_a_coordinator_leaves_when_a_later_one_appears(
    memory: MemoryBroker, tmp_path: Path, clock: Clock
) -> None:
    first = coordinator(memory, tmp_path, clock, "first", 5)
    lead(first, memory)
    coordinator(memory, tmp_path, clock, "second", 6)
    with pytest.raises(Superseded, match=r"took over run 'r' \(epoch 6, expected at most 5\)"):
        listen(first)
    assert read_card(memory) == ("second", 6)


def test_a_coordinator_whose_clock_is_behind_takes_a_higher_epoch(
    memory: MemoryBroker, tmp_path: Path, clock: Clock
) -> None:
    first = coordinator(memory, tmp_path, clock, "first", 5)
    lead(first, memory)
    second = coordinator(memory, tmp_path, clock, "second", 3)
    listen(second)
    assert read_card(memory) == ("second", 6)
    with pytest.raises(Superseded):
        listen(first)


def test_the_card_of_an_earlier_coordinator_is_replaced(
    memory: MemoryBroker, tmp_path: Path, clock: Clock
) -> None:
    later = coordinator(memory, tmp_path, clock, "later", 6)
    listen(later)
    coordinator(memory, tmp_path, clock, "earlier", 5)
    listen(later)
    assert read_card(memory) == ("later", 6)


def test_a_coordinator_looks_for_a_later_one_before_it_publishes_again(
    memory: MemoryBroker,
    tmp_path: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was away while the later one announced itself, and heard nothing of it."""
    first = coordinator(memory, tmp_path, clock, "first", 5)
    lead(first, memory)
    first.link.unsubscribe(topics.run("r"))
    coordinator(memory, tmp_path, clock, "second", 6)
    receive = first.link.receive
    waiting = [Delivery(LINK_UP, b"")]
    monkeypatch.setattr(
        first.link, "receive", lambda timeout: waiting.pop() if waiting else receive(timeout)
    )
    clock.now += CARD_PATIENCE  # it slept, so its card is due for a check as well
    first.turn(0)
    assert read_card(memory) == ("second", 6)
    with pytest.raises(Superseded):
        listen(first)
    assert read_card(memory) == ("second", 6)


def test_a_broker_that_forgot_the_card_gets_it_again(
    memory: MemoryBroker, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = coordinator(memory, tmp_path, clock, "only", 5)
    listen(fleet)
    fleet.link.unsubscribe(topics.run("r"))
    fleet.link.publish(topics.run("r"), b"", retain=True)
    waiting, receive = [Delivery(LINK_UP, b"")], fleet.link.receive
    monkeypatch.setattr(
        fleet.link, "receive", lambda timeout: waiting.pop() if waiting else receive(timeout)
    )
    fleet.turn(0)
    clock.now += FENCE
    fleet.turn(0)
    assert read_card(memory) == ("only", 5)


def test_weights_that_a_broker_lost_are_published_again(
    memory: MemoryBroker, tmp_path: Path, clock: Clock
) -> None:
    """An agent that downloads them would wait until its lease ends. A client that removes the card
    again and again does not make the coordinator send them without a pause.
    """
    fleet = coordinator(memory, tmp_path, clock, "only", 5)
    listen(fleet)
    sent = fleet.endpoint.slots.put("v", "w1", (b"weights",), "r1")
    fleet.endpoint.slots.send(0.0)
    manifest = topics.manifest(topics.model("r", sent.slot, "w1"))
    agent = MemoryLink(memory, "agent")
    agent.subscribe(manifest)
    assert agent.receive(0) is not None
    counts = []
    for seconds in (FENCE, FENCE, CARD_PATIENCE):
        for topic in (topics.run("r"), manifest):
            fleet.link.publish(topic, b"", retain=True)
        listen(fleet)
        clock.now += seconds
        listen(fleet)
        found = iter(lambda: agent.receive(0), None)
        counts.append(sum(bool(delivery.payload) for delivery in found))
    assert counts == [1, 0, 1]
    assert read_card(memory) == ("only", 5)


def test_a_card_that_was_lost_is_published_again(
    memory: MemoryBroker, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = coordinator(memory, tmp_path, clock, "only", 5)
    listen(fleet)
    with monkeypatch.context() as broken:
        broken.setattr(fleet.link, "publish", lambda *arguments, **named: None)
        fleet.reannounce(replace(fleet.run, batch=CARD.batch + 1))
    listen(fleet)
    assert read_batch(memory) == CARD.batch
    clock.now += CARD_PATIENCE
    listen(fleet)
    assert read_batch(memory) == CARD.batch + 1


@pytest.mark.parametrize("delivers", [True, False])
def test_a_broker_that_delivers_nothing_after_a_restart_is_named(
    memory: MemoryBroker,
    tmp_path: Path,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    delivers: bool,
) -> None:
    """It acknowledges what is published and sends what it had retained, as NATS 2.9 does."""
    fleet = coordinator(memory, tmp_path, clock, "only", 5)
    listen(fleet)
    assert isinstance(fleet.link, MemoryLink)
    fleet.link.drop()
    fleet.link.restore()
    listen(fleet)
    if not delivers:
        fleet.link.unsubscribe(topics.run("r"))
    warned = []
    for seconds in (FENCE, CARD_PATIENCE, CARD_PATIENCE, CARD_PATIENCE):
        clock.now += seconds
        listen(fleet)
        warned.append("has not returned the run's card" in caplog.text)
        caplog.clear()
    assert warned == [False, False, not delivers, False]


@pytest.mark.parametrize("by_name_only", [False, True])
def test_a_card_that_the_broker_returned_is_repeated_only_for_agents_that_it_does_not_reach(
    memory: MemoryBroker,
    tmp_path: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    by_name_only: bool,
) -> None:
    fleet = coordinator(memory, tmp_path, clock, "only", 5)
    fleet.follow(broker_access=BrokerAccess("", by_name_only=by_name_only))
    listen(fleet)
    # messages hold no tuples
    fleet.reannounce(replace(fleet.run, settings={"widths": (0.5, 1.0)}))
    listen(fleet)
    sent = list[str]()
    monkeypatch.setattr(fleet.link, "publish", lambda topic, *rest, **named: sent.append(topic))
    clock.now += 2 * CARD_PATIENCE
    listen(fleet)
    assert (topics.run("r") in sent) == by_name_only
