"""The tables and pictures that are made of saved results of benchmarks."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.comparison import result as results
from benchmarks.comparison.result import BenchmarkResult, write_result
from benchmarks.comparison.rows import Baseline, Failure, compare, compare_all
from benchmarks.generated_docs.command import replace_table
from benchmarks.generated_docs.ratio_picture import draw_ratios, find_outdated_pictures
from benchmarks.generated_docs.result_tables import drop_measured, list_results, list_summaries
from edge_agent.bench.report import take_fingerprint
from edge_agent.device.process_limits import Limits
from tests.benchmarks.test_comparison import COMPARING

README = Path(__file__).parents[2] / "README.md"
AT_MOST = Baseline("at most", 4.0)
LOST = compare("updates lost", 0, 1.0, limit=Baseline("at most", 0))


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BenchmarkResult:
    """Save one result, of `round`, in an empty folder."""
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    copy, goals = Baseline("copy", 10.0), {"flwr": 1.5, "copy": 0.6}
    rows = (
        *compare_all("2 agents (ms)", 20.0, {"flwr": 50.0}, copy, goals),
        *compare_all("10 agents (ms)", 40.0, {"flwr": 52.0}, copy, goals),
        compare("memory (MB)", 8.0, 1.0, limit=AT_MOST),
        LOST,
    )
    machine = take_fingerprint(Limits())
    found = BenchmarkResult("round", {}, rows, {"flwr": "1.42.0"}, machine, 0.1, "2026-01-02", 9.0)
    write_result(found)
    return found


@pytest.fixture
def none_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)


def test_the_readme_stays_short_with_every_result(saved: BenchmarkResult) -> None:
    for name in COMPARING:
        write_result(replace(saved, name=name))
    page = replace_table(drop_measured(README.read_text()), "ratios", list_summaries())
    assert page.count("](docs/benchmarks.md#") == len(COMPARING)
    assert "benchmarks scale" not in page
    assert len(page.splitlines()) <= 150


def test_failures_are_shown_with_their_reason(saved: BenchmarkResult) -> None:
    write_result(replace(saved, failures=(Failure("100 agents", "out of memory"),)))
    assert "Failed: `100 agents`: out of memory" in [*list_results()]


@pytest.mark.usefixtures("none_saved")
def test_without_results_the_pages_say_nothing() -> None:
    page = "| Two agents need 20 ms. | `python -m benchmarks round` |\n"
    assert [*list_summaries(), *list_results()] == []
    assert drop_measured(page) == page


@pytest.mark.usefixtures("saved")
def test_the_first_page_shows_the_range_of_each_ratio_and_counts_goals() -> None:
    assert list(list_summaries())[-1] == (
        "| [`round`](docs/benchmarks.md#round) | flwr 1.30x to 2.50x; copy 0.25x to 0.50x "
        "| 2 of 6 |"
    )


def test_a_benchmark_without_measured_baselines_shows_its_values(saved: BenchmarkResult) -> None:
    write_result(replace(saved, rows=(LOST, compare("x (ms)", 3.0, 1.0, limit=AT_MOST))))
    assert "| updates lost 0; x (ms) 3 | 2 of 2 |" in list(list_summaries())[-1]


@pytest.mark.usefixtures("saved")
def test_the_page_of_benchmarks_shows_every_row_with_its_goal() -> None:
    lines = list(list_results())
    assert "### round" in lines
    assert "![ratios of round](../benchmarks/results/round.svg)" in lines
    assert "| 10 agents (ms) | 40 | flwr 52 | copy 10 | 1.30x | 1.5x | missed |" in lines
    assert "| 2 agents (ms) | 20 | flwr 50 | copy 10 | 2.50x | 1.5x | met |" in lines
    assert "| updates lost | 0 |  | at most 0 |  | 1x | met |" in lines


@pytest.mark.usefixtures("saved")
def test_a_row_written_by_hand_goes_when_a_result_has_its_numbers() -> None:
    kept = (
        "| `round` | rounds of agents |\n"
        "| Nothing is lost. | `python -m benchmarks faults` |\n"
        "| Rounding works. | `python -m benchmarks rounding` |\n"
    )
    for gone in (
        "| Two agents need 20 ms. | `python -m benchmarks round` |\n",
        "| two agents | 20 ms | `round --agents 2` |\n",
    ):
        assert drop_measured(kept + gone) == kept


def test_a_picture_is_drawn_again_when_its_result_changes(saved: BenchmarkResult) -> None:
    path = results.FOLDER / "round.svg"
    assert find_outdated_pictures() == {path: saved}
    draw_ratios(path, saved)
    assert find_outdated_pictures() == {}
    words = [text for text in ElementTree.parse(path).getroot().itertext() if text.strip()]
    assert "10 agents (ms) / flwr: 1.30x, goal 1.5x, missed" in words
    assert not [word for word in words if word.startswith("updates lost")]  # has no ratio
    write_result(replace(saved, load=0.2))
    assert list(find_outdated_pictures()) == [path]
