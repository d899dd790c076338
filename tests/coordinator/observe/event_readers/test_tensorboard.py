"""Rounds as scalars for TensorBoard."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.event_readers.tensorboard import FOLDER, write_tensorboard
from coordinator.observe.events import RoundEnded, RunEnded
from coordinator.observe.round_records import RoundRecord, Score
from coordinator.settings.config import Config
from federated.errors import MissingExtra


def scalars(file: Path) -> Iterator[tuple[str, int, float]]:
    """Name, step and value. A record is its length (8 bytes), a checksum (4), data, a checksum."""
    from tensorboardX.proto.event_pb2 import Event as Record

    data, start = file.read_bytes(), 0
    while start < len(data):
        (length,) = struct.unpack_from("<Q", data, start)
        record = Record.FromString(data[start + 12 : start + 12 + length])
        for value in record.summary.value:
            yield value.tag, record.step, value.simple_value
        start += length + 16


def test_each_number_of_a_round_is_a_scalar_at_its_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    read = write_tensorboard(ReaderContext(tmp_path, Config(), lambda: 0.0))
    everyone = Score("w1", "central", 0.5, 1.5, 8, metrics={"accuracy": 0.5})
    one = Score("w1", "devices", 0.25, 2.0, 4, "pi", metrics={"accuracy": 0.25})
    read(RoundEnded(RoundRecord(3, 2.0, {}, {}, scores=(everyone, one), bytes_up=7)))
    read(RunEnded("over", "done"))
    (file,) = (tmp_path / FOLDER).iterdir()
    assert set(scalars(file)) == {
        ("round/seconds", 3, 2.0),
        ("round/asked", 3, 0.0),
        ("round/folded", 3, 0.0),
        ("round/bytes_up", 3, 7.0),
        ("round/bytes_down", 3, 0.0),
        ("central/w1/accuracy", 3, 0.5),
    }


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[tensorboard\]'"):
        write_tensorboard(ReaderContext(tmp_path, Config(), lambda: 0.0))
