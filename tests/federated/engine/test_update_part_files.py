"""Parts in files: what goes in comes out, once each."""

from __future__ import annotations

import pytest
import torch

from federated.engine.update_contributions import Part
from federated.engine.update_part_files import PartStore
from federated.errors import StoreError


def part(value, where=None, shape=None, weight=1.0, home="w", **rest):
    value = torch.as_tensor(value)
    return Part(
        home,
        tuple((0, n) for n in value.shape) if where is None else where,
        tuple(value.shape) if shape is None else shape,
        value,
        weight,
        **rest,
    )


def test_folded_parts_are_read_back_and_count_once(tmp_path):
    kept = PartStore(tmp_path)
    rows = torch.tensor([0.0, 9.0])
    assert kept.fold(
        [part([[1.0, 2.0]], shape=(2, 2), weight=40.0), part([5.0, 6.0], weight=rows, home="b")],
        ("a", 1),
    )
    first, second = kept.parts(("a", 1))
    assert (first.home, first.where, first.shape, first.weight) == (
        "w",
        ((0, 1), (0, 2)),
        (2, 2),
        1.0,
    )
    assert first.value.tolist() == [[1.0, 2.0]]
    assert second.value.tolist() == [5.0, 6.0]
    assert second.weight.tolist() == [0.0, 1.0]
    assert kept.frame.sums["w"].cover == {((0, 1), (0, 2)): [1.0]}


def test_a_key_is_folded_once(tmp_path):
    kept = PartStore(tmp_path)
    assert kept.fold([part([1.0])], ("a", 1))
    assert not kept.fold([part([2.0])], ("a", 1))
    assert [p.value.tolist() for p in kept.parts(("a", 1))] == [[1.0]]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "bad",
    [
        part([1.0, 2.0], shape=(3,)),
        part([1.0], scale=0.5),
        part([1.0], extra=(1.0,)),
        part([[1.0]]),
    ],
)
def test_a_part_that_does_not_fit_leaves_nothing_behind(tmp_path, bad):
    kept = PartStore(tmp_path)
    kept.fold([part([1.0])], ("a", 1))
    with pytest.raises(ValueError, match="part of w"):
        kept.fold([part([1.0], home="b"), bad], ("b", 1))
    assert len(list(tmp_path.iterdir())) == 1
    assert kept.fold([part([1.0])], ("b", 1))


def test_a_weight_of_zero_gives_nothing(tmp_path):
    kept = PartStore(tmp_path)
    kept.fold([part([1.0], weight=0.0)], ("a", 1))
    assert not kept.frame.sums
    assert kept.seen == {("a", 1): None}


def test_files_of_an_earlier_round_go(tmp_path):
    PartStore(tmp_path).fold([part([1.0])], ("a", 1))
    kept = PartStore(tmp_path)
    assert not list(tmp_path.iterdir())
    kept.fold([part([1.0])], ("a", 1))
    kept.clear()
    assert not list(tmp_path.iterdir())
    assert not kept.seen


def test_a_disk_that_is_full_leaves_no_half_update(tmp_path, monkeypatch):
    kept = PartStore(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("federated.engine.update_part_files.write", full)
    with pytest.raises(OSError, match="No space"):
        kept.fold([part([1.0])], ("a", 1))
    assert not list(tmp_path.iterdir())
    assert not kept.seen


def test_every_flipped_bit_is_found_when_its_piece_is_read(tmp_path):
    kept = PartStore(tmp_path)
    value = torch.arange(10_000.0).reshape(100, 100)  # 40,000 bytes: pieces of 16,384
    kept.fold([part([1.0], home="b"), part(value)], ("a", 1))
    _, slot = kept.slots_of(("a", 1))
    (path,) = tmp_path.iterdir()
    written = path.read_bytes()
    for place in range(slot.offset, len(written), 997):
        damaged = bytearray(written)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        row = (place - slot.offset) // 400
        with pytest.raises(StoreError, match=r"000000.parts is damaged.*resume the run"):
            kept.read(("a", 1), slot, ((row, row + 1), (3, 7)))
        with pytest.raises(StoreError, match="damaged"):
            kept.read(("a", 1), slot)
    path.write_bytes(written)
    assert kept.read(("a", 1), slot, ((41, 60), (3, 7))).tolist() == value[41:60, 3:7].tolist()


def test_a_file_that_was_cut_is_damaged(tmp_path):
    kept = PartStore(tmp_path)
    kept.fold([part(torch.ones(9000))], ("a", 1))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(StoreError, match="damaged"):
        list(kept.parts(("a", 1)))
