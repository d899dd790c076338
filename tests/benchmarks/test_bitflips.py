"""Bit flips in the files of an interrupted run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bitflips.command import draw_flips, has_failed, summarise
from benchmarks.bitflips.flip_trial import CORE, KINDS, Flip, Outcome, run_undamaged, try_flip
from benchmarks.bitflips.interrupted_run import find_stops
from benchmarks.bitflips.sqlite_row_bytes import find_rows
from coordinator.store.run_store import Store


def test_four_of_five_flips_must_be_found() -> None:
    flips = draw_flips(200, 1, range(100))
    assert flips == draw_flips(200, 1, range(100)) != draw_flips(200, 2, range(100))
    assert sum(flip.kind in CORE for flip in flips) == 160


def test_rows_are_located_in_the_file_and_in_its_log(tmp_path: Path) -> None:
    store = Store.create(tmp_path, "r")
    store.next_session()
    spans = find_rows(tmp_path / "r" / "run.sqlite")
    rows = [one.path.read_bytes()[one.start : one.end] for one in spans]
    assert any(b"sessions" in row for row in rows)
    assert any(one.path.name.endswith("-wal") for one in spans)
    store.close()
    assert all(one.path.name == "run.sqlite" for one in find_rows(tmp_path / "r" / "run.sqlite"))


def test_missed_damage_of_a_row_is_a_failure_and_of_other_files_is_not() -> None:
    equal = {"finished": True, "same": True, "sound": True}
    row, other = (Outcome(Flip(0, kind, 9), **equal) for kind in ("row", "other"))
    assert has_failed(summarise([row]))
    assert not has_failed(summarise([other]))
    assert has_failed(summarise([Outcome(Flip(0, "other", 9), finished=True, sound=True)]))


@pytest.fixture(scope="module")
def stop() -> int:
    stops = find_stops()
    return stops[len(stops) // 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_not_trained_on(stop: int, kind: str) -> None:
    outcome = try_flip(Flip(3, kind, stop), run_undamaged(stop))
    assert not has_failed(summarise([outcome])), outcome
