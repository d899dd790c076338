"""Whole runs over links in memory: learning, refused messages, and recovery from losses."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coordinator.fleet.message_loop import MessageLoop
from coordinator.observe.events import Event, RoundDelayed
from coordinator.phases.run_context import ENDLESS, PATIENCE
from coordinator.round import next_round_actions
from coordinator.store.run_store import Store
from federated.errors import ConfigError, FleetError, StoreError
from federated.method import Tensors
from federated.task import Profile, Update
from federated.wire import envelope, messages, topics
from federated.wire.link import Delivery, Link
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.memory_federation import RUN, Member, digits, federate

# where neither what is learned nor the scores matter
SMALL = {
    "model.name": "mlp-small",
    "method.widths": [0.25, 0.5],
    "method.depths": [1],
    "train.epochs": 1,
    "train.steps": 4,
    "evaluate.between": False,
    "evaluate.devices": False,
    "evaluate.examples": 20,
}
WITHOUT_DATA = {**SMALL, "data.name": "agents", "evaluate.devices": True}
PINS = {"good": "w0.5-d1", "bad": "w0.5-d1"}


def members(count: int = 2) -> list[Member]:
    return [Member(f"a{i}", digits(i, count)) for i in range(count)]


def test_unequal_agents_learn_one_model(tmp_path: Path) -> None:
    """Three speeds give three submodels, and after six rounds the network classifies
    unseen digits.
    """
    fleet = [
        Member("a0", digits(0, 3), 0.01),
        Member("a1", digits(1, 3), 0.012),
        Member("a2", digits(2, 3), 0.5),
    ]
    done = federate(
        tmp_path,
        fleet,
        {
            "model.name": "mlp-small",
            "method.widths": [0.25, 0.5],
            "method.depths": [1, 2],
            "rounds": 6,
            "train.epochs": 2,
            "evaluate.every": 6,
            "evaluate.between": False,
        },
        patience=ENDLESS,  # the speeds that count are those of the profiles
    )
    assert len({s.name for s in done.result.history.assigned.values()}) == 3
    central = {s.submodel: s.accuracy for s in done.result.scores if s.view == "central"}
    assert len(central) == 4
    assert central["w0.5-d2"] > 0.9
    assert {s.view for s in done.result.scores} == {"central", "devices", "labels"}
    assert {"waiting: 0 of 3 agents", "waiting: 1 of 3 agents", "waiting: 2 of 3 agents"} & set(
        done.lines
    )
    assert all(
        m.participant is not None and m.participant.state.over == "the run is over" for m in fleet
    )


def test_the_same_run_twice_gives_the_same_bits(tmp_path: Path) -> None:
    first = federate(tmp_path / "1", members(3), {**SMALL, "rounds": 2}).result.state.tensors
    second = federate(tmp_path / "2", members(3), {**SMALL, "rounds": 2}).result.state.tensors
    assert first.keys() == second.keys()
    assert all(torch.equal(first[home], second[home]) for home in first)


def test_lost_and_doubled_chunks_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a link that drops, doubles and damages chunks, the final model is the same."""
    monkeypatch.setattr("federated.wire.retained_blobs.PATIENCE", 0.3)
    monkeypatch.setattr("federated.wire.chunks.STALL", 0.3)
    rng = np.random.default_rng(0)

    def tamper(delivery: Delivery) -> Iterable[Delivery]:
        place = topics.parse(delivery.topic)
        if place is None or place.kind != "chunk":
            return [delivery]
        match int(rng.integers(12)):
            case 0:
                return []
            case 1:
                return [delivery, delivery]
            case 2 if delivery.payload:
                return [
                    replace(
                        delivery, payload=delivery.payload[:-1] + bytes([delivery.payload[-1] ^ 1])
                    )
                ]
            case _:
                return [delivery]

    settings = {**SMALL, "wire.chunk": 4096}
    clean = federate(tmp_path / "1", members(), settings).result.state.tensors
    torn = federate(
        tmp_path / "2", members(), settings, broker=MemoryBroker(tamper=tamper)
    ).result.state.tensors
    assert all(torch.equal(clean[home], torn[home]) for home in clean)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Tensors:
    """Return the network after a round with one agent's update."""
    return federate(
        tmp_path_factory.mktemp("alone"),
        [Member("good", digits(1, 3))],
        {**SMALL, "assign.submodels": PINS},
    ).result.state.tensors


def spoil(what: str) -> Member:
    def change(update: Update) -> Update:
        if update.work != "train":
            return update
        name = next(iter(update.tensors))
        match what:
            case "NaN":
                return replace(
                    update,
                    tensors={**update.tensors, name: np.full_like(update.tensors[name], np.nan)},
                )
            case "shape":
                return replace(update, tensors={**update.tensors, name: np.zeros((1,), np.float32)})
            case "dtype":
                return replace(
                    update,
                    tensors={**update.tensors, name: update.tensors[name].astype(np.float64)},
                )
            case "name":
                return replace(
                    update, tensors={**update.tensors, "foreign": np.zeros(1, np.float32)}
                )
            case "missing":
                return replace(
                    update, tensors={k: v for k, v in update.tensors.items() if k != name}
                )
            case "samples":
                return replace(update, samples=-5)
            case "steps":
                return replace(update, steps=10**6)
            case "labels":
                return replace(update, notes={**update.notes, "labels": ["seven"]})
            case "round":
                return replace(update, round=99)
        raise AssertionError(what)

    return Member("bad", digits(0, 3), change=change)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("NaN", "finite"),
        ("shape", "expected shape"),
        ("dtype", "float32"),
        ("name", "foreign"),
        ("missing", "missing"),
        ("samples", "sample"),
        ("steps", "steps, found"),
        ("labels", "labels"),
        ("round", "expected round 1, found 99"),
    ],
)
def test_a_wrong_update_is_refused_with_a_reason_and_the_round_continues(
    tmp_path: Path, alone: Tensors, what: str, reason: str
) -> None:
    done = federate(
        tmp_path, [spoil(what), Member("good", digits(1, 3))], {**SMALL, "assign.submodels": PINS}
    )
    store = Store.open(tmp_path / "runs", RUN, read_only=True)
    entries = {e.agent: e for e in store.read_entries(1)}
    store.close()
    assert entries["good"].outcome == "folded"
    assert entries["bad"].outcome.startswith("refused: ")
    assert reason in entries["bad"].outcome
    weights = {
        home: value
        for home, value in done.result.state.tensors.items()
        if not home.startswith("stats/")
    }
    assert all(torch.equal(value, alone[home]) for home, value in weights.items())


def test_foreign_messages_are_refused_and_the_round_continues(tmp_path: Path) -> None:
    """Garbage, another protocol version, and a foreign name on an agent's own topic."""
    broker = MemoryBroker()
    stranger = MemoryLink(broker, "stranger")
    stranger.subscribe(topics.command(RUN, "stranger"))
    forged = envelope.encode(messages.Status("a0", "x", False))
    later = envelope.encode(messages.Goodbye("x")).replace(b"\xa1v\x03", b"\xa1v\x07")

    def watch(fleet: MessageLoop) -> None:
        for payload in (b"garbage", b"", forged, later, envelope.encode(messages.Goodbye("x"))):
            stranger.publish(topics.say(RUN, "stranger"), payload)

    done = federate(
        tmp_path,
        members(),
        SMALL,
        broker=broker,
        watch=lambda fleet: (fleet.endpoint.announce(), watch(fleet))[0],
    )
    said = []
    while (delivery := stranger.receive(0)) is not None:
        if not delivery.topic.startswith("$"):
            said.append(envelope.decode(delivery.payload))
    reasons = " | ".join(m.reason for m in said if isinstance(m, messages.Refusal))
    assert "protocol 7" in reasons
    assert "'a0'" in reasons
    assert "not a" in reasons or "msgpack" in reasons
    assert done.result.rounds == 1
    assert sorted(done.result.history.assigned) == ["a0", "a1"]


def test_a_killed_agent_does_not_delay_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_round_actions, "RETURN_TIME", 1.0)
    broker = MemoryBroker()

    def die(update: Update) -> Update:
        broker._links["a1"].kill()
        time.sleep(0.2)
        return update

    dying = Member("a1", digits(1, 2), change=die)
    done = federate(
        tmp_path, [Member("a0", digits(0, 2)), dying], {**SMALL, "evaluate.every": 1}, broker=broker
    )
    store = Store.open(tmp_path / "runs", RUN, read_only=True)
    assert {e.agent: e.outcome for e in store.read_entries(1)} == {"a0": "folded", "a1": "gone"}
    store.close()
    assert done.result.rounds == 1


def test_data_of_another_shape_are_refused_at_join(tmp_path: Path) -> None:
    wide = digits(0, 2)
    wide = replace(wide, x=np.repeat(wide.x, 2, axis=3), x_held=np.repeat(wide.x_held, 2, axis=3))
    odd = Member("odd", wide)
    with pytest.raises(
        FleetError, match=r"odd was refused: this run needs examples of shape \(1, 8, 8\)"
    ):
        federate(tmp_path, [odd, Member("a1", digits(1, 2))], {**SMALL, "fleet.wait": 3.0})
    assert odd.participant is not None
    assert odd.participant.state.refused


def test_no_agent_can_hold_the_smallest_submodel(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"no submodel fits any agent: the smallest, w0.5-d2"):
        federate(
            tmp_path,
            [
                Member("a0", digits(0, 2), memory=100_000),
                Member("a1", digits(1, 2), memory=100_000),
            ],
            {"model.name": "mlp-small", "fleet.wait": 0.5},
        )


def test_an_agent_that_can_hold_nothing_and_is_alone_does_not_end_a_run(tmp_path: Path) -> None:
    """A second agent joins after the coordinator found that the first cannot train."""
    found = threading.Event()

    class Later(Member):
        def live(self, link: Link, folder: Path) -> None:
            assert found.wait(60)
            super().live(link, folder)

    def read(event: Event) -> None:
        if isinstance(event, RoundDelayed):
            found.set()

    agents = [Member("a0", digits(0, 2), memory=100_000), Later("a1", digits(1, 2))]
    federate(tmp_path, agents, {**SMALL, "fleet.min_agents": 1}, read=read)
    store = Store.open(tmp_path / "runs", RUN, read_only=True)
    assert [(entry.agent, entry.outcome) for entry in store.read_entries(1)] == [("a1", "folded")]
    store.close()


def test_a_pinned_submodel_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown submodel 'w0.3-d2'; did you mean w0.5-d2"):
        federate(tmp_path, members(), {"assign.submodels": {"a0": "w0.3-d2"}})


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """One round and a resumed one equal two rounds bit for bit; the history has each round once."""
    whole = federate(tmp_path / "whole", members(), {**SMALL, "rounds": 2}).result.state.tensors
    federate(tmp_path / "split", members(), SMALL)
    with pytest.raises(StoreError, match="exists"):
        federate(tmp_path / "split", members(), {**SMALL, "rounds": 2})
    resumed = federate(
        tmp_path / "split", members(), {**SMALL, "rounds": 2}, resume=True
    ).result.state.tensors
    assert all(torch.equal(whole[home], resumed[home]) for home in whole)
    store = Store.open(tmp_path / "split" / "runs", RUN, read_only=True)
    assert [number for number, *_ in store.read_history()] == [1, 2]
    store.close()


def claim(examples: int) -> Member:
    """Return an agent that claims this number of examples."""

    def change(update: Update) -> Update:
        return replace(update, samples=examples) if update.work == "train" else update

    class Claimant(Member):
        def measure(self, run: messages.Run) -> Profile:
            profile = super().measure(run)
            return replace(profile, data=replace(profile.data, examples=examples))

    return Claimant("a2", digits(2, 3), change=change)


def test_an_update_counts_with_at_most_ten_times_the_median_of_the_examples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a simulation it counts with all of them."""
    honest = members(3)[:2]
    most = 10 * max(len(member.data.y) for member in honest)
    found = [
        federate(tmp_path / str(i), [*members(3)[:2], claim(n)], SMALL, patience=patience)
        for i, (n, patience) in enumerate(
            [(most, PATIENCE), (2**39, PATIENCE), (most, ENDLESS), (2**39, ENDLESS)]
        )
    ]
    capped, liar, plain, trusted = (one.result.state.tensors for one in found)
    assert all(torch.equal(capped[home], liar[home]) for home in capped)
    assert all(torch.equal(capped[home], plain[home]) for home in capped)
    assert not all(torch.equal(capped[home], trusted[home]) for home in capped)
    warned = [one.message for one in caplog.records if "robust.examples" in one.message]
    assert warned == [
        f"a2 with {2**39} examples: more than 10 times the median of the agents' examples; each "
        f"counts as {most} examples (robust.examples)"
    ]


def test_the_target_accuracy_ends_a_run(tmp_path: Path) -> None:
    settings = {**SMALL, "rounds": 5, "evaluate.every": 1, "target_accuracy": 0.01}
    done = federate(tmp_path, members(), settings)
    assert done.result.reached
    assert done.result.rounds == 1


def test_a_coordinator_without_data_learns_their_shape_from_the_agents(tmp_path: Path) -> None:
    """It evaluates on the devices' held-out data alone; mean and deviation of the inputs are those
    of all data together.
    """
    fleet = members()
    done = federate(tmp_path, fleet, WITHOUT_DATA)
    assert {s.view for s in done.result.scores} == {"devices", "labels"}
    pooled = np.concatenate([m.data.x for m in fleet]).astype(float)
    network = next(iter(done.result.history.assigned.values())).network
    assert network.mean == pytest.approx((pooled.mean(),), rel=1e-6)
    assert network.std == pytest.approx((pooled.std(),), rel=1e-4)


def test_one_agent_with_other_data_does_not_keep_the_others_from_starting(tmp_path: Path) -> None:
    """The first agent has larger images, and gets the reason why it cannot take part."""
    whole = digits(0, 3)
    large = replace(
        whole,
        x=np.pad(whole.x, ((0, 0), (0, 0), (1, 1), (1, 1))),
        x_held=np.pad(whole.x_held, ((0, 0), (0, 0), (1, 1), (1, 1))),
    )
    fleet = [Member("a0", large), Member("a1", digits(1, 3)), Member("a2", digits(2, 3))]
    done = federate(tmp_path, fleet, {**WITHOUT_DATA, "fleet.min_agents": 2})
    assigned = done.result.history.assigned
    assert set(assigned) == {"a1", "a2"}
    assert assigned["a1"].network.inputs == (1, 8, 8)
    assert fleet[0].participant is not None
    assert fleet[0].participant.state.refused
    assert "this run needs examples of shape (1, 8, 8)" in fleet[0].participant.state.over


def test_a_network_of_ones_own_is_scaled_and_trained(tmp_path: Path) -> None:
    settings = {
        "model.name": "tests.support.user_models:small",
        "method.name": "fedavg",
        "method.widths": [0.5, 1.0],
        "rounds": 4,
    }
    done = federate(tmp_path, members(), settings)
    central = [s.accuracy for s in done.result.scores if s.view == "central"]
    assert len(central) == 2
    assert central[-1] > 0.5


def test_an_agent_that_can_hold_nothing_does_not_end_a_run_of_others(tmp_path: Path) -> None:
    """One agent is drawn each round; the weak one never is."""
    fleet = [
        Member("a0", digits(0, 3), memory=1000),
        Member("a1", digits(1, 3)),
        Member("a2", digits(2, 3)),
    ]
    done = federate(
        tmp_path, fleet, {**SMALL, "rounds": 5, "fleet.fraction": 0.34, "evaluate.every": 5}
    )
    assert done.result.rounds == 5
    assert set(done.result.history.assigned) <= {"a1", "a2"}


def test_the_retained_status_of_an_old_process_does_not_block_an_agent(tmp_path: Path) -> None:
    broker = MemoryBroker()
    broker.publish(
        topics.status(RUN, "a0"), envelope.encode(messages.Status("a0", "old", True)), retain=True
    )
    done = federate(tmp_path, members(), SMALL, broker=broker)
    assert sorted(done.result.history.assigned) == ["a0", "a1"]
    assert [envelope.decode(payload) for payload in broker.retained.values()] == [
        messages.Goodbye("the run is over")
    ]


def test_two_agents_with_one_name_get_the_reason(tmp_path: Path) -> None:
    """The second takes over, and the first gets the reason why it must leave."""
    broker = MemoryBroker()
    second = MemoryLink(broker, "other client")

    def watch(fleet: MessageLoop) -> None:
        if not second.sent_bytes and "a0" in fleet.agents and fleet.agents["a0"].ready:
            second.publish(
                topics.status(RUN, "a0"), envelope.encode(messages.Status("a0", "s2", True))
            )
            second.publish(
                topics.status(RUN, "a0"), envelope.encode(messages.Status("a0", "s2", False))
            )

    fleet = [*members(), Member("a2", digits(0, 2))]
    federate(
        tmp_path,
        fleet,
        {**SMALL, "fleet.min_agents": 2, "fleet.deadline": 2.0},
        broker=broker,
        watch=lambda f: setattr(f, "publish", lambda event: watch(f)),
    )
    first = fleet[0].participant
    assert first is not None
    assert first.state.refused
    assert "another agent joined under the name 'a0'" in first.state.over
