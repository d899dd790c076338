"""The common part of the benchmarks that compare: rows, results, their files, and the command."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from benchmarks.__main__ import main
from benchmarks.comparison import result as results
from benchmarks.comparison.command import benchmark
from benchmarks.comparison.result import BenchmarkResult, format_result, read_results, write_result
from benchmarks.comparison.rows import Baseline, Failure, Row, compare, compare_all, compare_errors
from benchmarks.generated_docs.result_tables import list_results
from benchmarks.interleaved_timing import time_interleaved
from edge_agent.bench.report import take_fingerprint
from edge_agent.device.process_limits import Limits
from federated.errors import ConfigError
from federated.runtime.console import Say

COMPARING = (
    *(
        "aggregation",
        "codec",
        "codec-accuracy",
        "inference",
        "predict",
        "round",
        "scale",
        "simulation",
    ),
    *("startup", "training", "trainstep"),
)
FIELDS = {"name", "ours", "peer", "limit", "ratio", "goal", "met"}


@benchmark("sums", "coordinator")
@click.option("--items", type=int, default=1000)
@click.option("--notes", type=click.Path(path_type=Path))
def sums(items: int, notes: Path | None, say: Say) -> list[Row]:
    """Sum numbers."""
    say("summing")
    times = time_interleaved({"sum": lambda: sum(range(items)), "half": lambda: range(items // 2)})
    return [compare("sum (ms)", times["sum"], 0.5, limit=Baseline("half", times["half"]))]


def run(*words: str) -> Result:
    return CliRunner().invoke(sums, [*words])


def make_result(rows: Sequence[Row]) -> BenchmarkResult:
    machine = replace(take_fingerprint(Limits()), commit="0123456789+", governor="performance")
    return BenchmarkResult(
        "sums", {"turns": "3"}, tuple(rows), {"flwr": "1.42.0"}, machine, 0.25, "2026-01-02T03", 7.5
    )


def test_a_goal_is_a_least_ratio() -> None:
    met = compare("x (ms)", 2.0, 1.5, peer=Baseline("flwr", 3.0), limit=Baseline("copy", 1.0))
    assert (met.ratio, met.met, met.baseline) == (1.5, True, Baseline("flwr", 3.0))
    assert compare("x (ms)", 2.0, 1.6, peer=Baseline("flwr", 3.0)).met is False
    assert compare("x (ms)", 2.0, 0.5, limit=Baseline("copy", 1.0)).met
    assert compare("x (ms)", 2.0, limit=Baseline("copy", 1.0)).met is None
    nothing = compare("lost", 0, 1.0, limit=Baseline("at most", 0))
    assert (nothing.ratio, nothing.met) == (None, True)
    assert compare("x (ms)", 2.0).baseline is None


def test_a_measurement_is_compared_with_every_peer_and_the_limit() -> None:
    peers, limit = {"flwr": 4.0, "pfl": 1.0}, Baseline("copy", 1.0)
    rows = compare_all("x (ms)", 2.0, peers, limit, {"flwr": 1.5, "copy": 0.6})
    assert [(row.baseline, row.met) for row in rows] == [
        (Baseline("flwr", 4.0), True),
        (Baseline("pfl", 1.0), None),
        (limit, False),
    ]
    assert {row.limit for row in rows} == {limit}


def test_accuracies_are_equal_within_a_point() -> None:
    row = compare_errors("int8", 0.90, "float32", 0.91)
    assert (row.ours, row.met) == (pytest.approx(10), True)
    assert not compare_errors("int8", 0.899, "float32", 0.91).met
    assert not compare_errors("int8", 0.921, "float32", 0.91).met


@pytest.mark.parametrize("name", COMPARING)
def test_every_benchmark_that_compares_can_save(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    *_, form, save, any_load = (option.name for option in command.params)
    assert [form, save, any_load] == ["form", "save", "any_load"]


def test_the_json_has_the_rows_and_what_they_depend_on() -> None:
    done = run("--items", "2000", "--notes", "/some/folder/notes.txt", "--format", "json")
    found = json.loads(done.stdout)
    (row,) = found["rows"]
    assert set(row) == FIELDS
    assert row["limit"].keys() == {"name", "value"}
    assert found["options"] == {"items": "2000", "notes": "notes.txt"}
    assert found["machine"]["cpus"] == len(os.sched_getaffinity(0))
    assert {"torch", "numpy"} <= found["machine"]["versions"].keys()
    assert (found["name"], done.stderr) == ("sums", "summing\n")


def test_the_text_shows_rows_machine_and_versions() -> None:
    rows = compare_all("sum (ms)", 200.0, {"flwr": 400.0}, Baseline("half", 99.0), {"flwr": 3.0})
    about, head, first, second = format_result(make_result(rows)).splitlines()
    for part in ("2026-01-02", "01234567+", "performance", "load 0.2", "flwr 1.42.0", "--turns 3"):
        assert part in about
    assert head.split() == ["ours", "peer", "limit", "ratio", "goal"]
    assert first.split()[2:] == ["200", "flwr", "400", "half", "99", "2.00x", "3x", "missed"]
    assert second.split()[2:] == ["200", "half", "99", "0.49x"]


def test_a_failure_ends_with_an_exit_code_after_all_rows() -> None:
    @benchmark("parts", "coordinator")
    def parts(say: Say) -> Iterator[Row | Failure]:
        yield Failure("first", "out of order")
        yield compare("second (ms)", 2.0)

    done = CliRunner().invoke(parts, [])
    assert done.exit_code == 1
    assert "second (ms)" in done.stdout
    assert done.stdout.splitlines()[-1] == "failed: first: out of order"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty folder for results."""
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return tmp_path


def test_a_saved_result_is_read_again(folder: Path) -> None:
    made = make_result([compare("sum (ms)", 2.0, 0.5, limit=Baseline("half", 1.0))])
    path = write_result(made)
    assert path == folder / "sums.json"
    assert read_results() == [made]
    path.write_text('{"name": "sums"}')
    with pytest.raises(ConfigError, match=r"sums.json.*benchmarks sums --format json"):
        read_results()


def test_a_result_is_saved_only_on_an_idle_machine_or_if_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    refused = run("--save")
    assert (refused.exit_code, "load average is 1000.0" in refused.stderr) == (3, True)
    assert "summing" not in refused.output
    assert not list(folder.iterdir())
    assert run("--save", "--any-load").exit_code == 0
    assert read_results()[0].load == 1000.0
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.0, 0.0))
    assert "sums.json" in run("--save").output
    assert read_results()[0].load == 0.1


def test_a_peer_that_cannot_be_installed_is_named_in_the_saved_result(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip refuses a version that does not exist, and its reason names no folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    @benchmark("sums", "coordinator", peers=("flwr",))
    def alone(peers: Sequence[str], say: Say) -> list[Row]:
        return [compare(f"{len(peers)} peers (ms)", 2.0)]

    done = CliRunner().invoke(alone, ["--save", "--any-load"])
    assert done.exit_code == 0, done.output
    (found,) = read_results()
    assert found.rows[0].name == "0 peers (ms)"
    assert "No matching distribution found for flwr" in found.absent["flwr"]
    assert str(folder) not in found.absent["flwr"]
    assert "not compared with flwr: cannot install the peer flwr: No matching" in done.stdout
    assert any("Not compared with flwr: cannot install" in line for line in list_results())
