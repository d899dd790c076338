"""How often the present state of a coordinator is written."""

from __future__ import annotations

from pathlib import Path

from coordinator.fleet.message_loop import MessageLoop
from coordinator.observe import events
from coordinator.observe.event_readers.now_json_writer import write_now
from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.now_json import read_now
from coordinator.round.round_events import AgentBeat, AgentConnected, AgentLeft
from coordinator.settings.config import Config
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.messages import Condition
from tests.support.scripted_coordinator import CARD


def test_the_state_is_written_once_a_second_and_at_the_end(tmp_path: Path) -> None:
    """Rounds may be much shorter than a second, and a fleet of thousands takes long to describe."""
    fleet = MessageLoop(MemoryLink(MemoryBroker(), "coordinator"), CARD, tmp_path / "spool")
    now, written = 10.0, []
    read = write_now(ReaderContext(tmp_path, Config(), lambda: now, fleet=fleet))
    for seconds, event in (
        (0.0, events.RoundStarted(1, 9, {})),
        (0.5, events.RoundStarted(2, 9, {})),
        (0.4, events.LoopTurned()),
        (0.1, events.LoopTurned()),
        (0.1, events.RoundStarted(3, 9, {})),
        (0.1, events.RunEnded("stopped", "interrupted")),
    ):
        now += seconds
        read(event)
        found = read_now(tmp_path)
        assert found is not None
        written.append((found.round, found.phase))
    assert written == [
        *((1, "train"), (1, "train"), (1, "train")),
        *((2, "train"), (2, "train"), (3, "stopped")),
    ]


def test_the_condition_of_connected_devices_and_a_lost_broker_are_written(tmp_path: Path) -> None:
    fleet = MessageLoop(MemoryLink(MemoryBroker(), "coordinator"), CARD, tmp_path / "spool")
    read = write_now(ReaderContext(tmp_path, Config(), lambda: 0.0, fleet=fleet))
    hot = Condition(71.5, True, "battery")
    for name in "ab":
        fleet.driver.handle(AgentConnected(1.0, name, "s", ""))
        fleet.driver.handle(AgentBeat(1.0, name, "s", "idle", 0.5, 0, condition=hot))
    fleet.driver.handle(AgentLeft(2.0, "b", "s", "went away"))
    for lost in ("timed out", ""):
        read(events.LinkChanged(lost))
        found = read_now(tmp_path)
        assert found is not None
        assert found.broker_lost == lost
        read(events.LinkChanged(lost, "store"))
        found = read_now(tmp_path)
        assert found is not None
        assert found.store_lost == lost
        assert [one.condition for one in found.members] == [hot, Condition()]
