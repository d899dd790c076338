"""Rounds and scores as CSV."""

from __future__ import annotations

from pathlib import Path

from coordinator.observe.event_readers.csv_files import ROUNDS, SCORES, write_csv
from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.events import RoundEnded
from coordinator.observe.round_records import Entry, RoundRecord, Score
from coordinator.settings.config import Config

DONE = RoundRecord(
    3,
    2.00049,
    {},
    {},
    entries=(Entry("pi", "w1", "folded"), Entry("jet", "w1", "lost")),
    scores=(
        Score("w1", "central", 0.5, 1.5, 8, metrics={"accuracy": 0.5, "loss": 1.5}),
        Score("w1", "devices", 0.25, 2.0, 4, "pi", metrics={"accuracy": 0.25}),
    ),
    bytes_up=7,
    bytes_down=9,
)


def test_a_round_is_a_line_and_each_number_of_its_scores_is_one(tmp_path: Path) -> None:
    write_csv(ReaderContext(tmp_path, Config(), lambda: 0.0))(RoundEnded(DONE))
    assert (tmp_path / ROUNDS).read_text().splitlines() == [
        "round,seconds,asked,folded,bytes_up,bytes_down",
        "3,2.0,2,1,7,9",
    ]
    assert (tmp_path / SCORES).read_text().splitlines() == [
        "round,submodel,view,agent,examples,metric,value",
        "3,w1,central,,8,accuracy,0.5",
        "3,w1,central,,8,loss,1.5",
        "3,w1,devices,pi,4,accuracy,0.25",
    ]


def test_a_resumed_run_continues_the_files_under_one_header(tmp_path: Path) -> None:
    for _ in range(2):
        write_csv(ReaderContext(tmp_path, Config(), lambda: 0.0))(RoundEnded(DONE))
    assert len((tmp_path / ROUNDS).read_text().splitlines()) == 1 + 2 * 1
    assert len((tmp_path / SCORES).read_text().splitlines()) == 1 + 2 * 3
