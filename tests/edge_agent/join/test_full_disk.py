"""With a full disk, the task fails with the reason, and no partial file remains."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.device.process_limits import Limits
from edge_agent.join.training_process_control import Job, Worker
from federated.device.agent_event_loop import AgentEventLoop, Equipment
from federated.device.agent_run_files import Spool
from federated.task import Recipe, Task
from federated.wire import messages, tensors
from federated.wire.chunks import split
from federated.wire.links.memory import MemoryBroker, MemoryLink
from models.slicing import corners, extract
from models.submodel import Submodel
from models.submodel_building import initial, shapes
from tests.support.disks import small_disk
from tests.support.scripted_coordinator import (
    AGENT,
    CARD,
    NETWORK,
    RUN,
    SMALL,
    ScriptedCoordinator,
    profile,
)

pytestmark = pytest.mark.processes


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a disk of 1 MB."""
    with small_disk(tmp_path, 1) as disk:
        yield disk


def read_weights(submodel: Submodel) -> bytes:
    whole = initial(NETWORK, 0)
    plan = corners(
        {name: tuple(value.shape) for name, value in whole.items()}, submodel, shapes(submodel)
    )
    return bytes(
        tensors.encode({}, {name: value.numpy() for name, value in extract(whole, plan).items()})
    )


def test_an_agent_continues_after_its_disk_was_full(disk: Path) -> None:
    """First the weights do not fit, then the update; afterwards the agent resumes."""
    weights = read_weights(SMALL)
    clerk, link = ScriptedCoordinator(broker := MemoryBroker()), MemoryLink(broker, AGENT)
    worker = Worker(Job(AGENT, "digits", None, "0/8", "iid", 0, "cpu", "", Limits()))
    try:
        worker.load()
        spool = Spool(disk / "spool", lasting=True)
        participant = AgentEventLoop(link, CARD, AGENT, "s1", Equipment(profile, worker, spool))
        participant.join()
        clerk.shelve(weights)

        def ask(round: int) -> messages.Message:
            made = Task(
                RUN,
                round,
                1,
                AGENT,
                "train",
                SMALL,
                "v",
                split(weights, 1024, "w").sha256,
                len(weights),
                Recipe(steps=1, batch=8),
                60.0,
            )
            clerk.tell(made)
            until = time.monotonic() + 60
            while not (said := clerk.hear()):
                assert time.monotonic() < until
                participant.turn(0.02)
            return said[0]

        filler = disk / "filler"
        fill(filler, leave=len(weights) // 2)
        failed = ask(1)
        assert isinstance(failed, messages.Failure)
        assert (
            failed.reason
            == f"no room for its weights ({len(weights)} bytes) in {spool.folder}: No space left "
            "on device"
        )
        assert list(spool.folder.iterdir()) == []
        filler.unlink()
        fill(filler, leave=int(1.5 * len(weights)))
        failed = ask(2)
        assert isinstance(failed, messages.Failure)
        assert "No space left on device" in failed.reason
        assert failed.paused, "a retry may succeed"
        assert [path.suffix for path in spool.folder.iterdir()] == [".weights"]
        pid = worker.pid
        filler.unlink()
        assert isinstance(ask(3), messages.Offer)
        assert worker.pid == pid, "the training process was not replaced"
        assert sorted(path.suffix for path in spool.folder.iterdir()) == [
            ".task",
            ".update",
            ".weights",
        ]
    finally:
        worker.close()


def fill(path: Path, leave: int) -> None:
    """Write a file that leaves this many bytes free."""
    status = os.statvfs(path.parent)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, status.f_bavail * status.f_frsize - leave))
