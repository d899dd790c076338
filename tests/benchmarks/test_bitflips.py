"""Bit flips in the files of an interrupted run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bitflips.command import draw_flips, has_failed, summarise
from benchmarks.bitflips.flip_trial import CORE, KINDS, Flip, Outcome, run_undamaged, try_flip
from benchmarks.bitflips.interrupted_run import find_stops
from benchmarks.bitflips.sqlite_row_bytes import find_rows
from coordinator.store.run_store import Store


def test_five_of_six_flips_must_be_found() -> None:
    stops = range(100), range(200, 300)
    flips = draw_flips(240, 1, *stops)
    assert flips == draw_flips(240, 1, *stops) != draw_flips(240, 2, *stops)
    assert sum(flip.kind in CORE for flip in flips) == 200
    assert all(flip.robust == (flip.stop >= 200) for flip in flips)


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


@pytest.fixture(scope="module")
def undamaged(stop: int) -> str:
    return run_undamaged(stop)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "kept"])
def test_a_flipped_bit_is_not_trained_on(stop: int, undamaged: str, kind: str) -> None:
    outcome = try_flip(Flip(3, kind, stop), undamaged)
    assert not has_failed(summarise([outcome])), outcome


def test_a_flipped_bit_of_an_update_kept_for_a_rule_is_not_trained_on() -> None:
    stops = find_stops(robust=True)
    flip = Flip(3, "kept", stops[len(stops) // 2])
    outcome = try_flip(flip, run_undamaged(0, robust=True))
    assert not has_failed(summarise([outcome])), outcome
    assert (outcome.reported, outcome.finished, outcome.same) == (True, True, True), outcome
