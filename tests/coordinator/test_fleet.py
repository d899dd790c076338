"""The coordinator's half of the protocol, spoken to by hand: what is lost is said again, what is hostile is refused."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from coordinator.acceptance import check_scores, check_statistics, check_training
from coordinator.collection import Collection, unchecked
from coordinator.fleet import Fleet
from coordinator.openings import missing
from federated.errors import Refused, StoreError
from federated.task import Card, Profile, Recipe, Task, Timing, Update
from federated.wire import messages, tensors, topics
from federated.wire.chunks import slices, split
from federated.wire.memory import MemoryBroker, MemoryLink
from models.families import menu, network, shapes, statistics
from models.submodel import Submodel

NETWORK = network("preresnet", (1, 8, 8), 10)
SMALL, LARGE = menu(NETWORK, (0.5, 1.0), (2,))
CARD = messages.Run("r", "fedfa", "preresnet", NETWORK, (SMALL,), 32, "s")
DATA = Card("digits", (1, 8, 8), "uint8", 10, 100, 20, (5.0,), (6.0,))
PROFILE = Profile("a", "h", "s", 1.0, 10**9, 1e6, 2**18, "torch", DATA, (Timing(SMALL, 32, 0.01),))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Peer:
    """An agent made of nothing but its link."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self.name, self.link = name, MemoryLink(broker, name)
        self.link.subscribe(topics.command("r", name))
        self.say(messages.Status(name, "s1", True), topics.status("r", name))
        self.say(replace(PROFILE, agent=name), topics.profile("r", name))

    def say(self, message: messages.Message, topic: str | None = None) -> None:
        self.link.publish(
            topic or topics.say("r", self.name), messages.encode(message), retain=topic is not None and topic.endswith(("status", "profile"))
        )

    def beat(self, state: str = "idle") -> None:
        self.say(messages.Heartbeat(self.name, "s1", state, 1), topics.heartbeat("r", self.name))

    def heard(self) -> list[messages.Message]:
        found = []
        while (delivery := self.link.receive(0)) is not None:
            if not delivery.topic.startswith("$"):
                found.append(messages.decode(delivery.payload))
        return found

    def send(self, task: Task, values: dict[str, np.ndarray], transfer: str = "t", **fields: object) -> None:
        """A whole update: the offer and all chunks, without waiting for a grant."""
        made = Update("r", task.round, task.attempt, self.name, task.work, task.submodel, task.version, 10, 1, {}, {"labels": [1], "loss": 1.0})
        made = replace(made, **fields)  # type: ignore[arg-type]
        data = memoryview(bytes(tensors.encode(msgspec.to_builtins(made), values)))
        manifest = split(data, 2**18, transfer)
        self.say(messages.Offer(manifest, "r", task.round, task.attempt, task.work, task.submodel.name))
        for chunk in slices(manifest, data):
            self.say(chunk, topics.chunk(topics.upload("r", self.name, transfer), chunk.index))


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet(broker: MemoryBroker, tmp_path: Path, clock: Clock) -> Fleet:
    made = Fleet(MemoryLink(broker, "coordinator"), CARD, tmp_path, clock=clock)
    made.announce()
    return made


def listen(fleet: Fleet) -> None:
    for _ in range(200):
        fleet.turn(0)


def task(name: str, work: str = "train") -> Task:
    return Task("r", 1, 1, name, work, SMALL, "r0", "0" * 64, 1000, Recipe(), 60.0)  # type: ignore[arg-type]


def collecting(fleet: Fleet, names: str, work: str = "train", check: object = None) -> Iterator[object]:
    tasks = [task(name, work) for name in names]
    check = check or (lambda task, update: None)
    return fleet.collect(tasks, quorum=len(tasks), deadline=600, check=check, size=lambda task: 10**6)  # type: ignore[arg-type]


def weights(value: float = 1.0) -> dict[str, np.ndarray]:
    return {name: np.full(shape, value, np.float32) for name, shape in shapes(SMALL).items()}


def test_an_agent_is_ready_once_it_is_here_and_measured(fleet: Fleet, broker: MemoryBroker) -> None:
    peer = Peer(broker, "a")
    listen(fleet)
    assert [a.name for a in fleet.ready()] == ["a"]
    peer.say(messages.Status("a", "s1", False), topics.status("r", "a"))
    listen(fleet)
    assert fleet.ready() == []


def test_a_busy_coordinator_hears_what_was_said_before_it_calls_anyone_silent(fleet: Fleet, broker: MemoryBroker, clock: Clock) -> None:
    peers = [Peer(broker, name) for name in "abc"]
    listen(fleet)
    for peer in peers:
        peer.beat()
    clock.now = 100.0  # it computed for a while
    fleet.turn(0)
    assert len(fleet.ready()) == 3
    listen(fleet)
    assert len(fleet.ready()) == 3
    clock.now = 200.0
    listen(fleet)
    assert fleet.ready() == []
    peers[0].beat()
    listen(fleet)
    assert [a.name for a in fleet.ready()] == ["a"]


def test_a_task_that_was_lost_is_said_again_to_an_idle_agent(fleet: Fleet, broker: MemoryBroker, clock: Clock) -> None:
    peer = Peer(broker, "a")
    listen(fleet)
    collection = collecting(fleet, "a")
    peer.link.unsubscribe(topics.command("r", "a"))

    def hear_late() -> None:
        peer.link.subscribe(topics.command("r", "a"))
        clock.now += 5
        peer.beat("idle")
        listen(fleet)
        heard = [m for m in peer.heard() if isinstance(m, Task)]
        assert heard == [task("a")]
        peer.send(heard[0], weights())

    original = fleet.turn
    once = [hear_late]

    def turn(timeout: float) -> None:
        original(0)
        if once:
            once.pop()()

    fleet.turn = turn  # type: ignore[method-assign]
    assert len(list(collection)) == 1


def test_weights_for_which_there_is_no_room_are_an_error_of_the_store_and_leave_nothing(fleet: Fleet, broker: MemoryBroker) -> None:
    before, part = dict(broker.retained), fleet.shelf.folder / "r0-w1.weights"
    part.symlink_to("/dev/full")
    with pytest.raises(StoreError, match=r"weights of 7 bytes could not be written to .*: No space left on device"):
        fleet.shelf.put("r0", "w1", memoryview(b"weights"))
    assert not part.is_symlink()
    assert broker.retained == before


def test_weights_are_published_again_to_a_broker_that_forgot(fleet: Fleet, broker: MemoryBroker) -> None:
    fleet.shelf.put("r0", "w1", memoryview(b"weights"))
    known = dict(broker.retained)
    assert len(known) == 3, "the card, a chunk and a manifest"
    broker.retained.clear()
    link = fleet.link
    assert isinstance(link, MemoryLink)
    link.drop()
    link.mend()
    listen(fleet)
    assert broker.retained == known
    fleet.dismiss("over")
    assert [messages.decode(payload) for payload in broker.retained.values()] == [messages.Goodbye("over")]


@pytest.mark.parametrize(
    "profile",
    [
        replace(PROFILE, timings=()),
        replace(PROFILE, timings=(Timing(SMALL, 32, 0.0),)),
        replace(PROFILE, timings=(Timing(SMALL, 32, 5e-324),)),
        replace(PROFILE, timings=(Timing(SMALL, 32, 1e300),)),
        replace(PROFILE, timings=(Timing(SMALL, 16, 0.01),)),
        replace(PROFILE, timings=(Timing(replace(SMALL, network=replace(NETWORK, family="sys:exit")), 32, 0.01),)),
        replace(PROFILE, uplink=5e-324),
        replace(PROFILE, data=replace(DATA, examples=0)),
        replace(PROFILE, data=replace(DATA, mean=())),
        replace(PROFILE, data=replace(DATA, std=(math.nan,))),
    ],
    ids=[
        "no timings",
        "no time",
        "next to no time",
        "for ever",
        "another batch",
        "code by name",
        "no bytes a second",
        "no examples",
        "no mean",
        "NaN",
    ],
)
def test_a_profile_that_was_not_measured_by_the_card_is_refused(fleet: Fleet, broker: MemoryBroker, profile: Profile) -> None:
    peer = Peer(broker, "a")
    listen(fleet)
    peer.heard()
    fleet.agents["a"].profile = None
    peer.say(profile, topics.profile("r", "a"))
    listen(fleet)
    assert fleet.ready() == []
    assert [type(m) for m in peer.heard()] == [messages.Refusal]


@pytest.mark.parametrize(("timed", "ready"), [((SMALL, LARGE), True), ((SMALL,), True), ((LARGE, SMALL), False), ((SMALL, SMALL), False)])
def test_a_device_times_what_it_has_room_for_in_the_cards_order(fleet: Fleet, broker: MemoryBroker, timed: tuple[Submodel], ready: bool) -> None:
    fleet.run = replace(CARD, calibration=(SMALL, LARGE))
    peer = Peer(broker, "a")
    listen(fleet)
    fleet.agents["a"].profile = None
    peer.say(replace(PROFILE, timings=tuple(Timing(submodel, 32, 0.01) for submodel in timed)), topics.profile("r", "a"))
    listen(fleet)
    assert bool(fleet.ready()) is ready


def test_an_offer_of_nothing_or_of_too_much_is_refused(fleet: Fleet, broker: MemoryBroker) -> None:
    peer = Peer(broker, "a")
    listen(fleet)
    collection = collecting(fleet, "a")
    original, done = fleet.turn, []

    def turn(timeout: float) -> None:
        original(0)
        if not done:
            done.append(True)
            peer.say(messages.Offer(messages.Manifest("t", 10**9, 2**18, "0" * 64), "r", 1, 1, "train", SMALL.name))
            listen_raw()

    def listen_raw() -> None:
        for _ in range(50):
            original(0)

    fleet.turn = turn  # type: ignore[method-assign]
    assert list(collection) == []
    assert fleet.collection.entries["a", SMALL.name, 1].outcome.startswith("refused: update of a for w0.5-d2.2.2: at most 1000000 bytes")
    with pytest.raises(Refused):
        fleet.inbox.open("a", messages.Offer(messages.Manifest("t", 0, 2**18, "0" * 64), "r", 1, 1, "train", SMALL.name), 0.0)


def test_an_accepted_update_cannot_be_overwritten_by_another_of_its_name(fleet: Fleet, broker: MemoryBroker) -> None:
    """Each transfer has a file of its own, whatever it calls itself: what was checked is what is folded."""
    first, second = Peer(broker, "a"), Peer(broker, "b")
    listen(fleet)
    folded = []
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
    for _, update in collecting(fleet, "ab"):  # type: ignore[misc]
        folded.append((update.agent, float(next(iter(update.tensors.values())).flat[0])))
    assert folded == [("a", 1.0), ("b", 2.0)]


def test_updates_out_of_all_proportion_are_refused() -> None:
    made = Update("r", 1, 1, "a", "train", SMALL, "r0", 10, 1, weights(1.0), {"labels": [1], "loss": 1.0})
    norms = {name: float(np.sqrt(np.prod(shape))) for name, shape in shapes(SMALL).items()}
    check_training(made, shapes(SMALL), norms, 10, 5)
    for wrong, words in (
        (replace(made, tensors=weights(3e38)), "norm"),
        (replace(made, samples=11), "samples"),
        (replace(made, samples=2**70), "samples"),
        (replace(made, steps=2**70), "step"),
        (replace(made, notes={"labels": [1], "loss": "abc"}), "loss"),
        (replace(made, notes={"labels": [10], "loss": 1.0}), "labels"),
    ):
        with pytest.raises(Refused, match=words):
            check_training(wrong, shapes(SMALL), norms, 10, 5)


def test_statistics_and_scores_are_checked() -> None:
    values = {name: np.ones(shape, np.float32) for name, shape in statistics(SMALL).items()}
    made = Update("r", 1, 1, "a", "calibrate", SMALL, "r0", 10, 0, values, {"batches": 2})
    check_statistics(made)
    for wrong in (
        replace(made, notes={"batches": 10**9}),
        replace(made, notes={"batches": True}),
        replace(made, tensors={**values, next(iter(values)): next(iter(values.values())) * 1e30}),
        replace(made, tensors={name: -value for name, value in values.items()}),
    ):
        with pytest.raises(Refused):
            check_statistics(wrong)
    good = {"count": [10], "loss": [5.0], "right": [7]}
    scored = Update("r", 1, 1, "a", "evaluate", SMALL, "r0", 10, 0, {}, {"tallies": {"all": good, "labels": good}})
    check_scores(scored)
    check_scores(replace(scored, notes={"tallies": {"all": good | dict.fromkeys(("hits", "guessed", "true"), [1.0] * SMALL.network.outputs)}}))
    wrong_tallies = [{**good, "right": [11]}, {**good, "right": [-1]}, {**good, "loss": [math.inf]}, {"count": [10], "loss": [5.0]}]
    wrong_tallies += [{**good, "count": [True]}, {**good, "hits": [1.0]}, {**good, "count": 10}, {}, [], {**good, "count": [10, 1]}]
    for notes in [*({"tallies": {"all": tally}} for tally in wrong_tallies), {"tallies": {"every": good}}, {"tallies": {"labels": good}}, {}]:
        with pytest.raises(Refused):
            check_scores(replace(scored, notes=notes))


def test_an_update_that_waits_for_a_slot_is_waited_for_longer_than_its_lease(broker: MemoryBroker, tmp_path: Path, clock: Clock) -> None:
    fleet = Fleet(MemoryLink(broker, "coordinator"), CARD, tmp_path, clock=clock, slots=1)
    fleet.announce()
    peers = [Peer(broker, name) for name in "abc"]
    listen(fleet)
    tasks = [replace(task(name), lease=10.0) for name in "abc"]
    collecting = fleet.collect(tasks, quorum=3, deadline=60, check=lambda t, u: None, size=lambda t: 10**6)
    steps = 0

    def turn(timeout: float) -> None:
        nonlocal steps
        steps += 1
        if steps == 1:
            data = memoryview(bytes(3000))
            for peer in peers[:2]:  # c says nothing at all
                peer.say(messages.Offer(split(data, 2000, "t"), "r", 1, 1, "train", SMALL.name))
        for peer in peers:
            peer.beat("train")
        clock.now += 5.0
        original(0)
        for _ in range(5):
            original(0)
        if clock.now == 25.0:
            judged.update({entry.task.agent: entry.late for entry in fleet.collection.entries.values()})

    judged: dict[str, bool] = {}
    original = fleet.turn
    fleet.turn = turn  # type: ignore[method-assign]
    assert list(collecting) == []
    assert judged == {"a": False, "b": False, "c": True}


def test_of_an_agent_that_was_shut_out_nothing_is_heard_asked_or_folded(fleet: Fleet, broker: MemoryBroker) -> None:
    first, second = Peer(broker, "a"), Peer(broker, "b")
    listen(fleet)
    original, done = fleet.turn, []

    def turn(timeout: float) -> None:
        original(0)
        if not done:
            done.append(True)
            second.send(task("b"), weights(2.0))  # received whole, and waiting for the one before it
            for _ in range(50):
                original(0)
            assert fleet.collection.of("b")[0].update is not None
            fleet.barred = lambda shut=frozenset("b"): shut  # type: ignore[misc]
            first.send(task("a"), weights(1.0))

    fleet.turn = turn  # type: ignore[method-assign]
    assert [update.agent for _, update in collecting(fleet, "ab")] == ["a"]  # type: ignore[misc]
    assert fleet.collection.of("b")[0].outcome == "refused: its certificate was revoked"
    second.beat()
    second.say(messages.Status("b", "s2", True), topics.status("r", "b"))
    listen(fleet)
    assert [a.name for a in fleet.ready()] == ["a"]
    assert not list(fleet.inbox.spool.rglob("*b*.update"))
    fleet.barred = frozenset  # it was enrolled anew
    second.say(messages.Status("b", "s3", True), topics.status("r", "b"))
    second.say(replace(PROFILE, agent="b"), topics.profile("r", "b"))
    listen(fleet)
    assert [a.name for a in fleet.ready()] == ["a", "b"]


def test_an_interrupted_round_leaves_the_agents_at_their_work(fleet: Fleet, broker: MemoryBroker) -> None:
    """Whoever resumes it goes on with the same tasks: nobody is told to drop them."""
    peer = Peer(broker, "a")
    listen(fleet)

    def interrupt() -> None:
        raise KeyboardInterrupt

    updates = collecting(fleet, "a")
    fleet.each_turn = interrupt
    with pytest.raises(KeyboardInterrupt):
        next(updates)
    assert [type(message) for message in peer.heard()] == [Task]


def test_a_device_that_only_tries_the_way_is_answered_and_is_no_agent(fleet: Fleet, broker: MemoryBroker) -> None:
    link = MemoryLink(broker, "doctor")
    link.subscribe(topics.command("r", "pi"))
    link.publish(topics.say("r", "pi"), messages.encode(messages.Echo("pi", 12.5)))
    listen(fleet)
    heard = link.receive(0)
    assert heard is not None
    answer = messages.decode(heard.payload)
    assert isinstance(answer, messages.Echo)
    assert (answer.agent, answer.sent) == ("pi", 12.5)
    assert abs(answer.time - time.time()) < 60
    assert not fleet.agents


def test_what_is_refused_is_counted_by_kind(fleet: Fleet, broker: MemoryBroker) -> None:
    peer = Peer(broker, "a")
    peer.link.publish(topics.say("r", "a"), b"nothing that was ever packed")
    peer.link.publish(topics.say("r", "a"), msgspec.msgpack.encode({"v": 99, "kind": "status", "body": {}}))
    peer.say(messages.Grant("t", b"", True))
    peer.send(task("a"), weights())
    listen(fleet)
    assert dict(fleet.refused) == {"malformed": 1, "protocol": 1, "message": 1, "unasked": 1}


def asking(fleet: Fleet, names: str, lease: float = 0.0, besides: str = "") -> tuple[Iterator[object], list[str]]:
    """A round of some agents with a lease, in which others are asked for each that is missing; who was asked so."""
    asked: list[str] = []

    def more(collection: Collection) -> list[Task]:
        found = [name for name in besides if name not in asked][: max(0, missing(collection, len(names)))]
        asked.extend(found)
        return [task(name) for name in found]

    tasks = [replace(task(name), lease=lease) for name in names]
    return fleet.collect(tasks, quorum=len(names), deadline=600, check=unchecked, size=lambda task: 10**6, more=more), asked


def turning(fleet: Fleet, steps: list[Callable[[], None]]) -> None:
    """Has something happen in each of the coordinator's turns, one after the other."""
    original = fleet.turn

    def turn(timeout: float) -> None:
        for _ in range(20):
            original(0)
        if steps:
            steps.pop(0)()

    fleet.turn = turn  # type: ignore[method-assign]


def test_an_agent_that_goes_away_is_replaced_by_one_that_was_not_asked(fleet: Fleet, broker: MemoryBroker) -> None:
    peers = {name: Peer(broker, name) for name in "abc"}
    listen(fleet)
    collection, asked = asking(fleet, "ab", besides="c")
    leave = lambda: peers["a"].say(messages.Status("a", "s1", False), topics.status("r", "a"))  # noqa: E731
    turning(fleet, [leave, lambda: peers["b"].send(task("b"), weights()), lambda: None, lambda: peers["c"].send(task("c"), weights())])
    assert [update.agent for _, update in collection] == ["b", "c"]  # type: ignore[misc]
    assert asked == ["c"]
    assert next(type(m) for m in peers["c"].heard()) is Task


def test_an_agent_past_its_lease_that_shows_no_progress_is_replaced_and_may_still_come(fleet: Fleet, broker: MemoryBroker, clock: Clock) -> None:
    peers = {name: Peer(broker, name) for name in "abc"}
    listen(fleet)
    collection, asked = asking(fleet, "ab", lease=30.0, besides="c")

    def later(step: int) -> None:
        """Fifteen seconds, in which a takes a step, and b says the same as before."""
        clock.now += 15.0
        peers["a"].say(messages.Heartbeat("a", "s1", "train", 1, step=step), topics.heartbeat("r", "a"))
        peers["b"].say(messages.Heartbeat("b", "s1", "train", 1, step=7), topics.heartbeat("r", "b"))
        peers["c"].beat()

    steps: list[Callable[[], None]] = [lambda step=step: later(step) for step in range(6)]  # type: ignore[misc]
    turning(fleet, [*steps, lambda: peers["b"].send(task("b"), weights()), lambda: peers["a"].send(task("a"), weights())])
    assert sorted(update.agent for _, update in collection) == ["a", "b"]  # type: ignore[misc]
    assert asked == ["c"], "for b alone"


def test_a_task_of_an_earlier_round_is_told_again_to_an_agent_that_comes_back(fleet: Fleet, broker: MemoryBroker) -> None:
    peers = {name: Peer(broker, name) for name in "ab"}
    listen(fleet)
    first = fleet.collect(
        [task("a"), task("b")], quorum=1, deadline=600, check=unchecked, size=lambda task: 10**6, folder="round-1", carry=lambda settled: True
    )
    turning(fleet, [lambda: peers["b"].send(task("b"), weights())])
    assert [update.agent for _, update in first] == ["b"]
    assert [key[0] for key in fleet.late] == ["a"]
    assert [agent.name for agent in fleet.free()] == ["b"]
    assert messages.Abort not in [type(m) for m in peers["a"].heard()]
    peers["a"].say(messages.Status("a", "s2", True), topics.status("r", "a"))
    listen(fleet)
    assert [m for m in peers["a"].heard() if isinstance(m, Task)] == [task("a")]
    again = replace(task("b"), round=2)
    second = fleet.collect([again], quorum=1, deadline=600, check=unchecked, size=lambda task: 10**6, folder="round-2", carry=lambda settled: True)
    turning(fleet, [lambda: peers["a"].send(task("a"), weights()), lambda: peers["b"].send(again, weights(), "t2")])
    assert [(update.agent, update.round) for _, update in second] == [("b", 2), ("a", 1)]
    assert fleet.late == {}


def test_an_update_that_a_closed_round_carried_waits_until_the_round_is_done_with(fleet: Fleet, broker: MemoryBroker) -> None:
    """Were it refused, its agent would drop it."""
    peer = Peer(broker, "a")
    listen(fleet)
    settled = {("a", 1): "carried", ("b", 1): "late"}
    Peer(broker, "b")
    listen(fleet)
    round = fleet.collect(
        [task("a"), task("b")],
        quorum=1,
        deadline=600,
        check=unchecked,
        size=lambda task: 10**6,
        folder="round-1",
        settled=settled,
        carry=lambda s: True,
    )
    original, offered = fleet.turn, []

    def turn(timeout: float) -> None:
        original(0)
        if not offered:
            offered.append(True)
            peer.send(task("a"), weights())
            for _ in range(20):
                original(0)

    fleet.turn = turn  # type: ignore[method-assign]
    assert list(round) == []
    fleet.turn = original  # type: ignore[method-assign]
    assert [m for m in peer.heard() if isinstance(m, messages.Receipt | messages.Grant)] == [messages.Grant("t", b"", False)]
    peer.send(task("a"), weights())
    listen(fleet)
    assert messages.Receipt("t", True, "") in peer.heard()


def test_an_update_that_is_never_what_it_promised_is_refused_and_not_waited_for(fleet: Fleet, broker: MemoryBroker) -> None:
    peer = Peer(broker, "a")
    listen(fleet)
    data = bytes(5000)
    manifest = messages.Manifest("t", len(data), 2**18, "0" * 64)
    offer = messages.Offer(manifest, "r", 1, 1, "train", SMALL.name)
    (chunk,) = slices(manifest, data)
    turning(fleet, [lambda: peer.say(offer), *[lambda: peer.say(chunk, topics.chunk(topics.upload("r", "a", "t"), 0))] * 3])
    assert list(collecting(fleet, "a")) == []
    assert fleet.collection.entries["a", SMALL.name, 1].outcome == "refused: its bytes were not those that it promised, 3 times"
