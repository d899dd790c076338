"""Weights and updates of simulated devices are files and no messages."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest

from coordinator.fleet.update_inbox import Inbox
from coordinator.run.config_sources import ConfigSources
from coordinator.simulate import simulation
from coordinator.simulate.local_transfers import LocalTransfers, SharedFolder
from federated.errors import Refused
from federated.task import Key
from federated.wire.chunks import split
from federated.wire.links.memory import MemoryBroker
from federated.wire.messages import Offer

EXPERIMENT = """
rounds = 2
[model]
name = "mlp-small"
[method]
name = "heterofl"
widths = [0.5, 1.0]
[train]
steps = 2
batch = 16
[evaluate]
examples = 20
[simulate]
agents = 3
partition = "iid"
workers = 1
"""


KEY, DATA = Key("d0", "w1", 1, "train"), b"x" * 1000


def test_no_message_holds_weights_or_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[str]()

    class RecordingBroker(MemoryBroker):
        def publish(self, topic: str, payload: bytes, *, retain: bool, qos: int = 1) -> None:
            sent.append(topic)
            super().publish(topic, payload, retain=retain, qos=qos)

    monkeypatch.setattr(simulation, "MemoryBroker", RecordingBroker)
    (tmp_path / "small.toml").write_text(EXPERIMENT)
    found = simulation.simulate(
        ConfigSources(tmp_path / "small.toml"), tmp_path / "runs", tmp_path / "out", say=print
    )
    assert found["seeds"]
    assert not [topic for topic in sent if "/c/" in topic]
    assert len([topic for topic in sent if topic.endswith("/say")]) >= 6, "an offer per update"


def offer_file(folder: Path) -> tuple[Inbox, Offer, Path]:
    """Return an inbox, an offer to it, and the file that is offered."""
    file, spool = folder / "own.update", folder / "spool"
    file.write_bytes(DATA)
    inbox = Inbox(spool, 1, urls=LocalTransfers(spool, OrderedDict()))
    manifest = split(DATA, 1024, "t", SharedFolder().share(file))
    return inbox, Offer(manifest, "r", KEY.round, 1, KEY.work, KEY.submodel), file


def test_the_file_of_an_expected_update_is_moved_and_not_sent(tmp_path: Path) -> None:
    inbox, offer, file = offer_file(tmp_path)
    inbox.expect({KEY: len(DATA)})
    assert inbox.open(KEY.agent, offer, 0.0) is None
    assert inbox.finish_upload(KEY) == (offer, inbox.path(KEY))
    assert inbox.path(KEY).read_bytes() == DATA
    assert not file.exists()
    assert (inbox.load, inbox.uploaded_bytes) == ((0, 0), len(DATA))


def test_the_file_of_an_unexpected_update_stays(tmp_path: Path) -> None:
    inbox, offer, file = offer_file(tmp_path)
    with pytest.raises(Refused, match="at most 0 bytes"):
        inbox.open(KEY.agent, offer, 0.0)
    assert inbox.finish_upload(KEY) is None
    assert file.read_bytes() == DATA
