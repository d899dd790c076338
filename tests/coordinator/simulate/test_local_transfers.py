"""Updates of simulated devices, and their large weights, are files and no messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.fleet.update_inbox import Inbox
from coordinator.run.config_sources import ConfigSources
from coordinator.simulate import local_transfers
from coordinator.simulate.local_transfers import LocalTransfers
from coordinator.simulate.simulation import simulate
from federated.errors import Refused
from federated.http_transfers import blob_transfers
from federated.http_transfers.blob_transfers import SharedFolder, make_download
from federated.http_transfers.http_download import DiskFailure
from federated.task import Key
from federated.wire.chunks import split
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


def test_files_and_messages_give_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = list[str]()

    class CountedCopy(blob_transfers.FileCopy):
        def start(self) -> None:
            super().start()
            copied.append(Path(self.url).suffix)

    monkeypatch.setattr(blob_transfers, "FileCopy", CountedCopy)
    weights, counts = list[bytes](), list[int]()
    for above in (0, 1 << 40):
        monkeypatch.setattr(local_transfers, "ABOVE", above)
        folder = tmp_path / str(above)
        folder.mkdir()
        (folder / "small.toml").write_text(EXPERIMENT)
        simulate(ConfigSources(folder / "small.toml"), folder / "runs", folder / "out", say=print)
        weights.append((folder / "runs" / "small-seed0" / "round-000002.safetensors").read_bytes())
        counts.append(copied.count(".weights"))
    assert counts[0] >= 2, "weights of two rounds"
    assert counts[1] == counts[0]
    assert weights[0] == weights[1]


def test_a_failure_of_the_disk_is_one_of_the_transfer(tmp_path: Path) -> None:
    download = make_download(SharedFolder(), str(tmp_path / "missing"), tmp_path / "part", "", 4)
    download.start()
    assert isinstance(download.failure, DiskFailure)
    assert (download.running, download.moved) == (False, 0)


def offer_file(folder: Path) -> tuple[Inbox, Offer, Path]:
    """Return an inbox, an offer to it, and the file that is offered."""
    file, spool = folder / "own.update", folder / "spool"
    file.write_bytes(DATA)
    inbox = Inbox(spool, 1, urls=LocalTransfers(spool))
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
