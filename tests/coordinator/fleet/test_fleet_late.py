"""Late updates: their tasks are sent again, carried over, and kept until their round is over."""

from __future__ import annotations

from dataclasses import replace

from coordinator.fleet.message_loop import MessageLoop
from coordinator.fleet.update_reception import Intake
from coordinator.round.round_state import Rules
from federated.task import Task
from federated.wire import messages, topics
from federated.wire.links.memory import MemoryBroker
from tests.support.scripted_agent import (
    Folding,
    ScriptedAgent,
    collect,
    listen,
    run_turns,
    task,
    weights,
)


def late_fleet(fleet: MessageLoop, memory: MemoryBroker) -> MessageLoop:
    """Return a fleet that accepts updates up to two rounds late."""
    made = MessageLoop(
        fleet.link, fleet.run, fleet.inbox.spool, Intake(rules=Rules(stale=2)), clock=fleet.clock
    )
    made.endpoint.announce()
    return made


def test_a_task_of_an_earlier_round_is_sent_again_to_an_agent_that_returns(
    fleet: MessageLoop, memory: MemoryBroker
) -> None:
    peers = {name: ScriptedAgent(memory, name) for name in "ab"}
    listen(fleet)
    fleet = late_fleet(fleet, memory)
    listen(fleet)
    run_turns(fleet, [lambda: peers["b"].send(task("b"), weights())])
    assert [
        update.agent for update in collect(fleet, [task("a"), task("b")], quorum=1, carries=True)
    ] == ["b"]
    fleet.driver.collect("train", Folding())
    assert [state.task.agent for state in fleet.late] == ["a"]
    assert [agent.name for agent in fleet.list_free()] == ["b"]
    assert messages.Abort not in [type(m) for m in peers["a"].heard()]
    peers["a"].say(messages.Status("a", "s2", True), topics.status("r", "a"))
    listen(fleet)
    assert [m for m in peers["a"].heard() if isinstance(m, Task)] == [fleet.late[0].task]
    again = replace(task("b"), round=2)
    run_turns(
        fleet,
        [
            lambda: peers["a"].send(task("a"), weights()),
            lambda: peers["b"].send(again, weights(), "t2"),
        ],
    )
    second = collect(fleet, [again], quorum=1, carries=True)
    assert [(update.agent, update.round) for update in second] == [("b", 2), ("a", 1)]
    assert fleet.late == []
