"""A release to a slow broker: the command waits for it, and nothing is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from coordinator.release.archive import Archive
from coordinator.release.release_request import ReleaseRequest
from coordinator.release.rollout import Rollout
from export import release_reader
from export.broker_publishing import read_published
from federated.errors import LinkError
from federated.wire.links.catalogue import open_link
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.handmade_releases import toy


@pytest.mark.broker
def test_a_release_to_a_stalled_broker_is_complete_when_the_command_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stalls longer than a closing link waits, as with a slow disk, and packets beyond
    the window were never sent.
    """
    monkeypatch.setattr("federated.wire.links.mqtt.FAREWELL", 0.2)
    (tmp_path / "runs" / "spring").mkdir(parents=True)
    with brokers.start("127.0.0.1", 0, "auto", tmp_path / "broker") as broker:
        link = open_link(broker.address, "coordinator")
        link.max_chunk = 1 << 10
        rollout = Rollout(link, Archive(tmp_path / "runs", "spring"), {}, 7, print)
        os.killpg(broker.pid, signal.SIGSTOP)
        threading.Timer(1.0, os.killpg, (broker.pid, signal.SIGCONT)).start()
        folder = toy(tmp_path / "made", bytes(20_000))
        rollout.follow(ReleaseRequest("spring", "h", bundle=folder))
        link.close()
        other = open_link(broker.address, "other")
        seen = read_published(other, "spring", time.monotonic)
        other.close()
    name, files = (
        release_reader.read_version(folder),
        {file.name for file in release_reader.list_files(release_reader.read_manifest(folder))},
    )
    assert seen.card is not None
    assert seen.card.stable is not None
    assert seen.card.stable.name == name
    assert {file for version, file in seen.manifests if version == name} == {
        *files,
        release_reader.MANIFEST,
    }


def test_a_release_that_the_broker_does_not_confirm_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.broker_publishing.SETTLE", 0.1)
    monkeypatch.setattr("export.broker_publishing.PATIENCE", 0.5)
    (tmp_path / "runs" / "spring").mkdir(parents=True)
    link = MemoryLink(
        MemoryBroker(
            tamper=lambda delivery: [] if delivery.topic.endswith("/card") else [delivery]
        ),
        "coordinator",
    )
    rollout = Rollout(link, Archive(tmp_path / "runs", "spring"), {}, 7, print)
    with pytest.raises(LinkError, match="publish it again with: coordinator release spring"):
        rollout.follow(ReleaseRequest("spring", "h", bundle=toy(tmp_path / "made", b"1")))
