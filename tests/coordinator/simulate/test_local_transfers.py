"""Large weights and updates of simulated devices travel as files, with the same result as in
messages.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.run.config_sources import ConfigSources
from coordinator.simulate import local_transfers
from coordinator.simulate.simulation import simulate
from federated.http_transfers import blob_transfers
from federated.http_transfers.blob_transfers import SharedFolder, make_download, make_upload
from federated.http_transfers.http_download import DiskFailure

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


def test_files_and_messages_give_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = list[str]()

    class CountedCopy(blob_transfers.FileCopy):
        def start(self) -> None:
            super().start()
            copied.append(Path(self.url).suffix)

    monkeypatch.setattr(blob_transfers, "FileCopy", CountedCopy)
    weights, counts = list[bytes](), list[tuple[int, int]]()
    for above in (0, 1 << 40):
        monkeypatch.setattr(local_transfers, "ABOVE", above)
        folder = tmp_path / str(above)
        folder.mkdir()
        (folder / "small.toml").write_text(EXPERIMENT)
        simulate(ConfigSources(folder / "small.toml"), folder / "runs", folder / "out", say=print)
        weights.append((folder / "runs" / "small-seed0" / "round-000002.safetensors").read_bytes())
        counts.append((copied.count(".weights"), copied.count(".part")))
    assert counts[0] >= (2, 6), "weights of two rounds, updates of three devices in each"
    assert counts[1] == counts[0]
    assert weights[0] == weights[1]


def test_a_failure_of_the_disk_is_one_of_the_transfer(tmp_path: Path) -> None:
    missing, place = tmp_path / "missing", tmp_path / "place"
    place.touch()
    (tmp_path / "place.copy").mkdir()  # where the upload writes first
    download = make_download(SharedFolder(), str(missing), tmp_path / "part", "", 4)
    upload = make_upload(SharedFolder(), str(place), memoryview(b"1234"), "w1")
    for transfer in (download, upload):
        transfer.start()
        assert isinstance(transfer.failure, DiskFailure)
        assert (transfer.running, transfer.moved) == (False, 0)


def test_an_upload_that_is_not_expected_writes_nothing(tmp_path: Path) -> None:
    upload = make_upload(SharedFolder(), str(tmp_path / "place"), memoryview(b"1234"), "w1")
    upload.start()
    assert not list(tmp_path.iterdir())
