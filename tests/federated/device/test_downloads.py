"""Weights are downloaded once, survive the process, and are removed first from a full disk. Tasks
run one at a time.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from federated.device.agent_run_files import Spool
from federated.device.agent_state import describe_activity
from federated.task import MAX_GRAPH, Graph
from federated.wire import messages, topics
from federated.wire.chunks import split
from federated.wire.retained_blobs import publish
from tests.support.scripted_coordinator import CHUNK, RUN, Agent, task


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    agent = Agent(tmp_path)
    agent.clerk.shelve(bytes(3000))
    return agent


def test_weights_are_downloaded_once_and_tasks_run_in_order(agent: Agent) -> None:
    first, second = task(1), task(1, work="evaluate")
    agent.clerk.tell(first)
    agent.ask(second)
    assert agent.hand.begun == [first]
    fetched = agent.fetched
    agent.hand.end(b"u")
    assert [said.work for said in agent.turn() if isinstance(said, messages.Offer)] == ["train"]
    assert agent.hand.begun == [first, second]
    assert agent.fetched == fetched
    assert describe_activity(agent.participant.state) == "evaluate"


def test_weights_that_are_published_elsewhere_meanwhile_are_fetched_from_there(
    agent: Agent,
) -> None:
    """A coordinator that resumed the round may ask for the same task with another slot."""
    old, new = replace(task(), slot="elsewhere"), task()
    agent.ask(old)
    assert describe_activity(agent.participant.state) == "download"
    agent.ask(new)
    assert agent.hand.begun == [new]


def test_a_task_is_dropped_at_its_deadline_unless_it_was_repeated(agent: Agent) -> None:
    agent.ask(task())
    agent.clock.now = 40.0
    agent.ask(task())
    agent.clock.now = 90.0
    agent.turn()
    assert agent.hand.task == task()
    agent.clock.now = 101.0
    agent.turn()
    assert describe_activity(agent.participant.state) == "idle"
    assert agent.hand.task is None
    agent.ask(task())
    assert agent.hand.begun == [task(), task()], "it is nothing that is under way"


def test_weights_that_an_earlier_process_left_are_not_fetched_again(
    agent: Agent, tmp_path: Path
) -> None:
    agent.ask(task())
    again = Agent(tmp_path, agent.stop())
    again.ask(task())
    assert again.hand.begun == [task()]
    assert (agent.fetched > 0, again.fetched) == (True, 0)


def test_damaged_weights_are_fetched_again(agent: Agent, tmp_path: Path) -> None:
    agent.ask(task())
    clerk = agent.stop()
    (tmp_path / f"{task().digest}.weights").write_bytes(b"\1" * 3000)
    again = Agent(tmp_path, clerk)
    again.ask(task())
    assert again.hand.begun == [task()]
    assert again.fetched > 0
    assert (tmp_path / f"{task().digest}.weights").read_bytes() == bytes(3000)


def test_a_full_spool_removes_the_oldest_weights_but_never_those_in_use(
    tmp_path: Path,
) -> None:
    agent = Agent(Spool(tmp_path, lasting=True, limit=7000))
    for number in range(4):
        weights = bytes([number]) * 3000
        agent.clerk.shelve(weights, f"v{number}")
        agent.ask(task(number + 1, weights=weights, version=f"v{number}"))
        agent.hand.end(reason="it is not to learn")
        agent.turn()
    there = {path.stem for path in tmp_path.glob("*.weights")}
    assert there == {task(weights=bytes([number]) * 3000).digest for number in (2, 3)}


def test_a_full_disk_first_removes_weights_and_then_fails_the_task(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.ask(task())
    agent.hand.end(reason="enough")
    agent.turn()
    weights = b"\7" * 4000
    agent.clerk.shelve(weights, "v7")

    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    (failure,) = agent.ask(task(2, weights=weights, version="v7"))
    assert isinstance(failure, messages.Failure)
    assert (
        failure.reason
        == f"no room for its weights (4000 bytes) in {tmp_path}: No space left on device"
    )
    assert list(tmp_path.iterdir()) == []
    assert describe_activity(agent.participant.state) == "idle"


GRAPH = bytes(range(200)) * 10


def shelve_graph(agent: Agent, data: bytes = GRAPH) -> Graph:
    manifest = split(data, CHUNK, "g")
    publish(agent.clerk.link, topics.graph(RUN, manifest.sha256), manifest, memoryview(data))
    return Graph("step", manifest.sha256, len(data))


def test_a_graph_is_downloaded_once_before_the_task_begins(agent: Agent, tmp_path: Path) -> None:
    graph = shelve_graph(agent)
    first = replace(task(1), graphs=(graph,))
    agent.ask(first)
    assert agent.hand.begun == [first]
    assert (tmp_path / f"{graph.digest}.graph").read_bytes() == GRAPH
    agent.hand.end(reason="enough")
    agent.turn()
    fetched = agent.fetched
    for number in range(2, 12):  # more weights than are kept
        weights = bytes([number]) * 100
        agent.clerk.shelve(weights, f"v{number}")
        later = replace(task(number, weights=weights, version=f"v{number}"), graphs=(graph,))
        agent.ask(later)
        assert agent.hand.begun[-1] == later
        agent.hand.end(reason="enough")
        agent.turn()
    assert len(list(tmp_path.glob("*.weights"))) == 8
    assert agent.fetched - fetched == 2 * 10, "a manifest and a chunk of weights each"


def test_a_graph_that_an_earlier_process_left_is_not_fetched_again(
    agent: Agent, tmp_path: Path
) -> None:
    asked = replace(task(), graphs=(shelve_graph(agent),))
    agent.ask(asked)
    again = Agent(tmp_path, agent.stop())
    again.ask(asked)
    assert again.hand.begun == [asked]
    assert again.fetched == 0


def test_a_task_waits_for_a_graph_that_has_another_digest(agent: Agent) -> None:
    graph = shelve_graph(agent)
    other = split(GRAPH[1:], CHUNK, "g")
    publish(agent.clerk.link, topics.graph(RUN, graph.digest), other, memoryview(GRAPH[1:]))
    asked = replace(task(), graphs=(graph,))
    agent.ask(asked)
    assert agent.hand.begun == []
    assert describe_activity(agent.participant.state) == "download"
    shelve_graph(agent)
    agent.turn()
    assert agent.hand.begun == [asked]


def test_a_task_with_too_large_a_graph_fails_at_once(agent: Agent) -> None:
    graph = replace(shelve_graph(agent), size=MAX_GRAPH + 1)
    (failure,) = agent.ask(replace(task(), graphs=(graph,)))
    assert isinstance(failure, messages.Failure)
    assert failure.reason == (
        f"training graph: expected at most {MAX_GRAPH} bytes, found {MAX_GRAPH + 1}"
    )
    assert agent.hand.begun == []
