"""One task is worked on, one has its weights on their way, the others wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from federated.spool import Spool
from federated.weights import Weights
from federated.wire import envelope, messages
from federated.wire.memory import MemoryBroker, MemoryLink
from federated.workload import Outcome, Workload
from tests.support.clerk import Clerk, Hand, lasting, task


class Bench:
    def __init__(self, spool: Spool) -> None:
        self.clerk = Clerk(MemoryBroker())
        self.link, self.hand = MemoryLink(self.clerk.broker, "a"), Hand()
        self.workload = Workload(self.hand, Weights(self.link, spool, None, 8), spool)
        self.now = 0.0

    def turn(self) -> list[Outcome]:
        ended = list(self.workload.advance(self.now, online=True))
        while (delivery := self.link.receive(0)) is not None:
            message = envelope.decode(delivery.payload)
            assert isinstance(message, messages.Manifest | messages.Chunk)
            ended += self.workload.fetch(delivery.topic, message, self.now)
        return ended


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(lasting(tmp_path))
    bench.clerk.shelve(bytes(3000))
    return bench


def test_weights_come_once_and_tasks_are_done_in_their_order(bench: Bench) -> None:
    first, second = task(1), task(1, work="evaluate")
    bench.workload.add(first, 60)
    bench.workload.add(second, 60)
    assert bench.turn() == []
    assert bench.hand.begun == [first]
    got = bench.link.received_bytes
    bench.hand.end(b"u")
    assert [outcome.task for outcome in bench.turn()] == [first]
    assert bench.hand.begun == [first, second]
    assert bench.link.received_bytes == got
    assert bench.workload.state == "evaluate"


def test_weights_that_are_published_elsewhere_meanwhile_are_fetched_from_there(bench: Bench) -> None:
    """By a coordinator that resumed the round, say: it asks for the same, and names another slot."""
    old, new = replace(task(), slot="elsewhere"), task()
    bench.workload.add(old, 60)
    bench.turn()
    assert bench.workload.state == "download"
    assert bench.workload.renew(new, lambda one: one == old, 100.0, 0.0)
    bench.turn()
    assert bench.hand.begun == [new]


def test_a_task_whose_time_is_up_is_given_up_unless_it_was_renewed(bench: Bench) -> None:
    bench.workload.add(task(), 60)
    bench.turn()
    assert bench.workload.renew(task(), lambda one: one == task(), 100.0, 0.0)
    bench.now = 90.0
    bench.turn()
    assert bench.workload.working == task()
    bench.now = 101.0
    bench.turn()
    assert bench.workload.state == ""
    assert bench.hand.task is None
    assert not bench.workload.renew(task(), lambda one: True, 200.0, 0.0)


def test_weights_that_an_earlier_process_left_are_not_fetched_again(bench: Bench, tmp_path: Path) -> None:
    bench.workload.add(task(), 60)
    bench.turn()
    bench.workload.spool.close()
    again = Bench(lasting(tmp_path))
    again.workload.add(task(), 60)
    again.turn()
    assert again.hand.begun == [task()]
    assert again.link.received_bytes == 0


def test_weights_that_the_disk_spoilt_are_fetched_again(bench: Bench, tmp_path: Path) -> None:
    bench.workload.add(task(), 60)
    bench.turn()
    bench.workload.spool.close()
    (tmp_path / f"{task().digest}.weights").write_bytes(b"\1" * 3000)
    again = Bench(lasting(tmp_path))
    again.clerk.shelve(bytes(3000))
    again.workload.add(task(), 60)
    again.turn()
    assert again.hand.begun == [task()]
    assert (tmp_path / f"{task().digest}.weights").read_bytes() == bytes(3000)


def test_the_oldest_weights_go_where_the_spool_is_full_but_never_those_in_use(tmp_path: Path) -> None:
    bench = Bench(Spool(tmp_path, lasting=True, limit=7000))
    for number in range(4):
        weights = bytes([number]) * 3000
        bench.clerk.shelve(weights, f"v{number}")
        bench.workload.add(task(number + 1, weights=weights, version=f"v{number}"), 60)
        bench.turn()
        bench.hand.end(reason="it is not to learn")
        bench.turn()
    there = {path.stem for path in tmp_path.glob("*.weights")}
    assert there == {task(weights=bytes([number]) * 3000).digest for number in (2, 3)}


def test_a_full_disk_first_costs_what_can_be_had_again_and_then_the_task(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.workload.add(task(), 60)
    bench.turn()
    bench.hand.end(reason="enough")
    bench.turn()
    weights = b"\7" * 4000
    bench.clerk.shelve(weights, "v7")

    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    bench.workload.add(task(2, weights=weights, version="v7"), 60)
    ended = [*bench.turn(), *bench.turn(), *bench.turn()]
    assert [outcome.reason for outcome in ended] == [f"no room for its weights (4000 bytes) in {tmp_path}: No space left on device"]
    assert list(tmp_path.iterdir()) == []
    assert bench.workload.state == ""
