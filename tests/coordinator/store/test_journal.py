"""The journal of a round: it survives crashes, detects damage, and removes what is not needed."""

from __future__ import annotations

import hashlib
import math
import resource
import signal
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coordinator.assign.affordable_submodels import Bounds, Offer
from coordinator.assign.agent_track_record import Setback, Standing
from coordinator.assign.decision_record import Decision
from coordinator.assign.decisions import Verdict
from coordinator.observe.round_records import Entry, Folded, RoundRecord
from coordinator.round import round_events as on
from coordinator.round.round_events import RoundEvent
from coordinator.round.round_state import Round, RoundPlan
from coordinator.round.round_step import step
from coordinator.round.task_state import Planned, Spare
from coordinator.store.journal import Base, Journal, pack
from coordinator.store.run_store import Store
from federated.engine.aggregate import Total, fold
from federated.engine.update_contributions import Part
from federated.errors import StoreError
from federated.task import Recipe, Task
from models.menu import menu
from models.named_network import network
from tests.support.memory_federation import RUN, Member, digits, federate
from tests.support.scripted_agent import PROFILE

NETWORK = network("preresnet", (1, 8, 8), 10)
SMALL, LARGE = menu(NETWORK, (0.5, 1.0), (2,))
STANDING = Standing("basis", 2, 1.5, setbacks=(Setback(SMALL.name, "late", 3, "slow"),))
VERDICT = Verdict(
    SMALL,
    Decision("a", SMALL.name, True, "fits", 0.5, 9.0, 10**6),
    (Offer(SMALL, 0.5, 9.0, 10**6, True),),
    Bounds(seconds=30.0),
)
PLAN = RoundPlan(
    4,
    2,
    {"a": SMALL, "b": LARGE},
    ((SMALL, 1), (LARGE, 1)),
    {"a": {"labels": [1, 2]}},
    {"a": VERDICT},
    {"a": STANDING},
    60.0,
    2,
    2,
)
FOLDED = Folded(
    Entry("a", SMALL.name, "folded", 10, 2, 0.5, 1.25, 0.1, 7, 0, "1" * 64),
    SMALL,
    STANDING,
    {"before": {"count": [10]}},
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store.create(tmp_path, "r")
    yield made
    made.close()


def total(*values: float) -> Total:
    made = Total()
    for i, value in enumerate(values):
        part = Part("w", ((0, 2),), (3,), torch.tensor([value, value / 3]), 0.1 + i)
        fold(made, [part], (f"a{i}", 1))
    return made


def tasks(*agents: str) -> tuple[Planned, ...]:
    return tuple(
        Planned(Task("r", 4, 1, agent, "train", SMALL, "r3", "0" * 64, 1000, Recipe(), 60.0), 7.0)
        for agent in agents
    )


def events() -> list[RoundEvent]:
    """Return the events of a round in progress, in which one of two updates is folded."""
    keys = [one.task.key for one in tasks("a", "b")]
    return [
        *(
            event
            for agent in "ab"
            for event in (on.AgentConnected(1.0, agent, "s"), on.ProfileCame(1.5, agent, PROFILE))
        ),
        on.RoundPlanned(2.0, PLAN),
        on.PhaseBegan(2.0, "train", 4, tasks("a", "b"), 60.0, 2, spares=(Spare("c", 3.0),)),
        on.AgentBeat(3.0, "a", "s", "train", math.nan, 7),
        on.UpdateCame(4.0, keys[0], 1, "t", "1" * 64, 0.5),
        on.UpdateFolded(4.0, keys[0]),
        on.AgentsBarred(5.0, frozenset({"x"}), "revoked"),
        on.Ticked(6.0, frozenset(keys[1:])),
    ]


def replay(round: Round, found_events: Iterable[RoundEvent]) -> Round:
    for event in found_events:
        round, _ = step(round, event)
    return round


def test_events_round_trip_and_replay_to_the_same_value(store: Store) -> None:
    store.journal.begin(Base("", Round()))
    assert store.journal.empty
    for event in events():
        store.journal.append(event)
    assert not store.journal.empty
    found = Journal(store.folder).read("")
    assert found is not None
    base, found_events = found
    assert [pack(event) for event in found_events] == [pack(event) for event in events()]
    assert pack(replay(base.round, found_events)) == pack(replay(Round(), events()))


def test_a_value_round_trips(store: Store) -> None:
    value = replay(Round(), events())
    store.journal.begin(Base("", value, "total-000004-000001.safetensors", (FOLDED,)))
    found = Journal(store.folder).read("")
    assert found is not None
    assert pack(found[0]) == pack(Base("", value, "total-000004-000001.safetensors", (FOLDED,)))
    assert found[0].folded == (FOLDED,)
    assert found[0].round.tasks == value.tasks


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_torn_last_event_is_cut_off(store: Store, cut: int) -> None:
    store.journal.begin(Base("", Round()))
    for event in events():
        store.journal.append(event)
    (path,) = store.folder.glob("journal-*")
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(store.folder)
    found = again.resume("")
    assert found is not None
    whole = len(found[1])
    assert whole == len(events()) - 1
    again.append(on.Ticked(9.0))
    again.close()
    found = Journal(store.folder).read("")
    assert found is not None
    assert [event.now for event in found[1]][whole:] == [9.0], (
        "what is written behind a torn record would never be read"
    )


def test_a_corrupt_event_ends_the_journal(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.journal.begin(Base("", Round()))
    for event in events():
        store.journal.append(event)
    (path,) = store.folder.glob("journal-*")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    again = Journal(store.folder)
    found = again.resume("")
    again.close()
    assert found is not None
    assert len(found[1]) == len(events()) - 1
    assert "journal-000001.log: dropped the last" in caplog.text


@pytest.mark.parametrize("place", ["length", "checksum", "event"])
def test_damage_to_synced_events_is_an_error(store: Store, place: str) -> None:
    """Agents hold receipts for synced events. Only the others may be cut off."""
    store.journal.begin(Base("", Round()))
    store.journal.append(on.Ticked(1.0))
    store.journal.sync()
    (path,) = store.folder.glob("journal-*")
    at = path.stat().st_size
    store.journal.append(on.Ticked(2.0))
    later = path.stat().st_size
    store.journal.append(on.Ticked(3.0))
    whole = bytearray(path.read_bytes())
    whole[at + {"length": 0, "checksum": 4, "event": 9}[place]] ^= 1
    path.write_bytes(whole)
    found = Journal(store.folder).read("")
    assert found is not None
    assert [event.now for event in found[1]] == [1.0], "nothing was synced after the first event"
    path.write_bytes(path.read_bytes()[:later])
    store.journal.close()
    again = Journal(store.folder)
    assert again.resume("") is not None
    for now in (4.0, 5.0):
        again.append(on.Ticked(now))
        again.sync()
    again.close()
    whole = bytearray(path.read_bytes())
    whole[at + {"length": 0, "checksum": 4, "event": 9}[place]] ^= 1
    path.write_bytes(whole)
    with pytest.raises(StoreError, match=f"byte {at} is damaged"):
        Journal(store.folder).resume("")
    assert path.read_bytes() == whole


def test_a_number_chosen_by_an_agent_is_not_read_as_a_synced_record(store: Store) -> None:
    """Two numbers in a row can look like a small record with the flag and a correct CRC."""
    store.journal.begin(Base("", Round()))
    (number,) = struct.unpack(">d", struct.pack("<II", 1 | 1 << 31, zlib.crc32(b"\xcb")))
    profile = replace(PROFILE, data=replace(PROFILE.data, mean=(number, number)))
    store.journal.append(on.ProfileCame(1.0, "a", profile, "", ""))
    (path,) = store.folder.glob("journal-*")
    path.write_bytes(path.read_bytes()[:-1])
    assert Journal(store.folder).read("") == (Base("", Round()), [])


@pytest.mark.parametrize("zeros", [1, 8, 4096])
def test_zeros_left_by_a_power_cut_are_not_events(store: Store, zeros: int) -> None:
    store.journal.begin(Base("", Round()))
    for event in events():
        store.journal.append(event)
    (path,) = store.folder.glob("journal-*")
    path.write_bytes(path.read_bytes() + bytes(zeros))
    found = Journal(store.folder).read("")
    assert found is not None
    assert len(found[1]) == len(events())


def test_an_event_without_room_leaves_the_journal_unchanged(store: Store) -> None:
    store.journal.begin(Base("", Round()))
    store.journal.append(events()[0])
    (path,) = store.folder.glob("journal-*")
    limits, handler = (
        resource.getrlimit(resource.RLIMIT_FSIZE),
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
    )
    try:
        # room for a part of the event
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
        for event in events()[1:3]:
            with pytest.raises(StoreError, match="File too large"):
                store.journal.append(event)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    store.journal.append(events()[2])
    found = Journal(store.folder).read("")
    assert found is not None
    assert [pack(event) for event in found[1]] == [pack(events()[0]), pack(events()[2])]


def test_a_total_round_trips_bit_for_bit_and_a_sweep_keeps_the_last_one(store: Store) -> None:
    kept = total(1.0, 1e-7, 3.3)
    for name, one in (
        ("total-000004-000001.safetensors", total(1.0)),
        ("total-000004-000003.safetensors", kept),
    ):
        digest = store.journal.write_total(name, one)
        store.journal.begin(Base("", Round(), name, (FOLDED,), digest))
        store.journal.sweep()
    found = store.journal.read_total("total-000004-000003.safetensors", digest)
    assert torch.equal(found.sums["w"].value, kept.sums["w"].value)
    assert (found.sums["w"].cover, found.seen) == (kept.sums["w"].cover, kept.seen)
    assert len(list(store.folder.glob("total-*"))) == len(list(store.folder.glob("journal-*"))) == 1


def test_a_missing_or_corrupt_total_is_named(store: Store) -> None:
    digest = store.journal.write_total("total-000004-000001.safetensors", total(1.0))
    (path,) = store.folder.glob("total-*")
    written = path.read_bytes()
    path.write_bytes(written[:-1] + bytes([written[-1] ^ 1]))
    with pytest.raises(StoreError, match=r"total-000004-000001.* is damaged: expected sha256"):
        store.journal.read_total(path.name, digest)
    path.write_bytes(written[:-9])
    with pytest.raises(StoreError, match="total-000004-000001"):
        store.journal.read_total(path.name, digest)
    path.unlink()
    with pytest.raises(StoreError, match=r"total-000004-000001.* is missing"):
        store.journal.read_total(path.name, digest)


def test_a_journal_continues_the_checkpoint_that_it_names(store: Store) -> None:
    """A coordinator that dies between the journal of a new checkpoint and its row in the database
    resumes from the checkpoint before.
    """
    store.journal.begin(Base("", Round()))
    for event in events():
        store.journal.append(event)
    store.journal.begin(Base("1" * 64, Round()))
    store.journal.append(on.Ticked(9.0))
    found = store.journal.resume("")
    assert found is not None
    assert len(found[1]) == len(events())
    assert Journal(store.folder).read("1" * 64) is None, "sweep removed it"
    assert Journal(store.folder).read("2" * 64) is None


def test_a_stored_round_begins_a_new_segment(store: Store) -> None:
    store.journal.begin(Base("", Round()))
    for event in events():
        store.journal.append(event)
    store.journal.write_total("total-000004-000001.safetensors", total(1.0))
    digest = store.save(RoundRecord(4, 1.0, {"w": torch.zeros(3)}, {}), Round())
    written = (store.folder / "round-000004.safetensors").read_bytes()
    assert digest == store.checkpoint_id == f"4:{hashlib.sha256(written).hexdigest()}"
    found = Journal(store.folder).read(digest)
    assert found is not None
    assert found[1] == []
    assert not list(store.folder.glob("total-*"))


def test_a_run_with_a_round_in_progress_is_not_discarded(tmp_path: Path) -> None:
    for name, kept in (("one", False), ("two", True)):
        store = Store.create(tmp_path, name)
        store.journal.begin(Base("", Round()))
        if kept:
            store.journal.append(on.RoundPlanned(1.0, PLAN))
        store.close(discard=True)
        assert (tmp_path / name).exists() == kept


def test_a_run_with_a_missing_journal_cannot_be_resumed(tmp_path: Path) -> None:
    settings = {
        "model.name": "mlp-small",
        "train.steps": 1,
        "rounds": 1,
        "evaluate.examples": 20,
        "evaluate.devices": False,
    }
    federate(tmp_path, [Member("a0", digits(0, 1))], settings)
    for path in (tmp_path / "runs" / RUN).glob("journal-*"):
        path.unlink()
    with pytest.raises(StoreError, match="expected a journal that continues round 1"):
        federate(
            tmp_path,
            [],
            {**settings, "rounds": 2, "fleet.min_agents": 1, "fleet.wait": 0.2},
            resume=True,
        )
