"""The journal of a real run is replayed without a broker, a fleet or a clock."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from coordinator.fleet.message_loop import MessageLoop
from coordinator.observe.events import Event, RoundStarted
from coordinator.round.round_events import PhaseBegan, UpdateFolded
from coordinator.round.round_state import Round
from coordinator.round.round_step import step
from coordinator.store.journal import Journal, pack
from tests.support.memory_federation import RUN, Member, digits, federate
from tests.support.restarted_coordinator import Killed

pytestmark = pytest.mark.broker

SETTINGS = {
    "model.name": "mlp-small",
    "method.widths": [0.5, 1.0],
    "train.steps": 2,
    "rounds": 3,
    "evaluate.examples": 20,
    "journal.every": 2,
}
AGENTS = 4


@pytest.mark.parametrize("folds", [1, 3])
def test_a_journal_replays_into_the_value_that_the_coordinator_had(
    tmp_path: Path, folds: int
) -> None:
    """The coordinator is killed in its second round after some folds, over a real broker. The
    replay reads nothing but the journal.
    """
    fleets, seen = list[MessageLoop](), Counter[str]()

    def die(event: Event) -> None:
        seen[type(event).__name__] += 1
        if isinstance(event, RoundStarted):
            seen["UpdateFolded"] = 0
        if seen["RoundStarted"] == 2 and seen["UpdateFolded"] == folds:
            raise Killed

    with brokers.start(port=0, directory=tmp_path) as broker, pytest.raises(Killed):
        federate(
            tmp_path,
            [Member(f"a{i}", digits(i, AGENTS)) for i in range(AGENTS)],
            SETTINGS,
            broker=broker.address,
            watch=fleets.append,
            read=die,
        )
    (fleet,) = fleets
    found = Journal(tmp_path / "runs" / RUN).read(fleet.driver.checkpoint)
    assert found is not None
    base, events = found
    value: Round = base.round
    for event in events:
        value, _ = step(value, event)
    assert pack(value) == pack(fleet.round)
    assert value.tasks == fleet.round.tasks
    held = {one.entry.agent for one in base.folded}
    since = {
        event.key.agent
        for event in events
        if isinstance(event, UpdateFolded) and event.key.work == "train" and event.key.round == 2
    }
    assert len(held | since) == folds, (
        "what the total holds, and what is folded again from the spool"
    )
    assert base.folded or any(
        isinstance(event, PhaseBegan) and event.round == 2 for event in events
    )
