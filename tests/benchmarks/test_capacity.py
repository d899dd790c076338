"""The estimate of a large fleet's needs, from results that are made with scale's own rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from benchmarks.__main__ import main
from benchmarks.capacity.estimate import COST_FLAGS, LEFT_OUT, list_doubts
from benchmarks.capacity.measured_points import Line, fit_lines, read_points
from benchmarks.capacity.needs import BEAT_BYTES, FleetNeeds, FleetPlan, find_needs
from benchmarks.comparison.result import BenchmarkResult
from benchmarks.comparison.rows import Failure
from benchmarks.raw_agents import fleet_rows
from edge_agent.bench.report import take_fingerprint
from edge_agent.device.process_limits import Limits
from federated.errors import ConfigError

MACHINE = replace(take_fingerprint(Limits()), commit="0123456789")
LINES = {
    "coordinator": Line(2.0, 0.004, 1000, 6.0),
    "broker": Line(0.0, 0.001, 1000, 1.0),
    "memory": Line(200e6, 0.1e6, 1000, 300e6),
}
PLAN = FleetPlan(
    agents=1_000_000,
    rounds_per_day=2,
    fraction=0.5,
    hours=10,
    model_bytes=300_000,
    update_bytes=300_000,
)


def make_result(agents: int, coordinator: float, *, workers: float = 0.0) -> BenchmarkResult:
    """Return a result of scale whose rounds took these seconds of processor time, and 1 ms of the
    broker's and 0.1 MB for each agent.
    """
    turn = fleet_rows.Turn(
        1, agents, 9.0, 200_000_000 + 100_000 * agents, coordinator, agents / 1000, workers
    )
    course = fleet_rows.Course((turn,), 1.0, agents, 1)
    rows = tuple(fleet_rows.make_rows(course, course, agents, 20_000_000))
    options = {"agents": str(agents)} | ({"workers": "2"} if workers else {})
    return BenchmarkResult("scale", options, rows, {}, MACHINE, 0.1, "2026-01-02", 9.0)


def write(folder: Path, *results: BenchmarkResult) -> list[Path]:
    paths = [folder / f"{number}.json" for number, _ in enumerate(results)]
    for path, one in zip(paths, results, strict=True):
        path.write_bytes(msgspec.json.encode(one))
    return paths


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["capacity", *map(str, arguments)])


def test_a_line_through_the_points_has_their_fixed_part_and_slope(tmp_path: Path) -> None:
    measured = read_points(
        write(tmp_path, make_result(1000, 6.0), make_result(100, 2.4), make_result(200, 2.8))
    )
    assert measured.agents == (100, 200, 1000)
    lines = fit_lines(measured)
    assert sorted(lines) == ["broker", "coordinator", "memory"]
    assert lines["coordinator"].fixed == pytest.approx(2.0)
    assert lines["coordinator"].per_agent == pytest.approx(0.004)
    assert lines["coordinator"].predict(10_000) == pytest.approx(42.0)
    assert lines["broker"].per_agent == pytest.approx(0.001)
    assert lines["memory"].fixed == pytest.approx(200e6)


def test_points_beside_a_line_are_fitted_by_least_squares(tmp_path: Path) -> None:
    points = (make_result(100, 1.0), make_result(200, 3.0), make_result(300, 2.0))
    line = fit_lines(read_points(write(tmp_path, *points)))["coordinator"]
    assert (line.fixed, line.per_agent) == (pytest.approx(1.0), pytest.approx(0.005))


def test_the_largest_point_is_predicted_from_the_smaller_ones(tmp_path: Path) -> None:
    points = make_result(100, 2.4), make_result(200, 2.8), make_result(1000, 7.5)
    line = fit_lines(read_points(write(tmp_path, *points)))["coordinator"]
    assert (line.largest, line.measured) == (1000, pytest.approx(7.5))
    assert line.predicted == pytest.approx(6.0)
    assert line.error == pytest.approx(-0.2)
    unchecked = fit_lines(read_points(write(tmp_path, *points[1:])))["coordinator"]
    assert (unchecked.predicted, unchecked.error) == (None, None)


def test_workers_have_a_line_of_their_own(tmp_path: Path) -> None:
    points = make_result(100, 2.4, workers=0.5), make_result(200, 2.8, workers=1.0)
    lines = fit_lines(read_points(write(tmp_path, *points)))
    assert lines["workers"].per_agent == pytest.approx(0.005)
    needs = find_needs(PLAN, lines)
    assert needs.worker_cores == pytest.approx(500_000 * 0.005 / 36_000)


def test_processors_are_seconds_of_a_round_in_the_hours_of_its_updates() -> None:
    needs = find_needs(PLAN, LINES)
    assert (needs.connected, needs.participants) == (1_000_000, 500_000)
    assert needs.coordinator_cores == pytest.approx((2 + 500_000 * 0.004) / 36_000)
    assert needs.broker_cores == pytest.approx(500 / 36_000)
    assert needs.coordinator_bytes == pytest.approx(200e6 + 500_000 * 0.1e6)
    # 36,000 s less 2 s, at 4 ms for every second agent
    assert (needs.fits, needs.most_connected) == (True, 17_999_000)
    assert needs.heartbeat_cores is None


def test_a_brokers_limit_of_messages_makes_heartbeats_rarer() -> None:
    limited = find_needs(replace(PLAN, broker_profile="aws"), LINES).traffic
    assert 10 < limited.heartbeats_per_second <= 20  # of 100 messages, the coordinator sends 80


def test_heartbeats_may_need_gateways() -> None:
    # every 120 s, 1,200 us of processor time: 10 processors for a million agents
    needs = find_needs(replace(PLAN, heartbeat_us=1200.0), LINES)
    assert needs.heartbeat_cores == pytest.approx(10.0)
    # (1 - 2 / 36,000) / (0.5 * 0.004 / 36,000 + 1.2e-3 / 120) = 99,441.9
    assert (needs.fits, needs.most_connected, needs.least_devices_per_site) == (False, 99_441, 11)
    sites = find_needs(replace(PLAN, heartbeat_us=1200.0, devices_per_site=11), LINES)
    assert (sites.fits, sites.connected, sites.participants) == (True, 90_910, 45_455)


def test_a_fixed_part_longer_than_the_round_is_served_by_no_gateways() -> None:
    lines = {**LINES, "coordinator": Line(40_000.0, 0.004, 1000, 40_004.0)}
    needs = find_needs(PLAN, lines)
    assert (needs.fits, needs.most_connected, needs.least_devices_per_site) == (False, 0, None)


def test_messages_and_bytes_are_counted_into_and_out_of_the_broker() -> None:
    traffic = find_needs(PLAN, LINES).traffic
    # 300,000 bytes are two chunks. From the agent: offer, two chunks, four heartbeats; to it: task,
    # two grants, receipt; each in and out. Out only: manifest and two chunks of the weights.
    each, beats = 2 * (7 + 4) + 3, 1_000_000 / 120
    assert traffic.heartbeats_per_second == pytest.approx(beats)
    assert traffic.messages_per_second == pytest.approx(500_000 * each / 36_000 + 2 * beats)
    assert traffic.messages_per_day == pytest.approx(2 * 500_000 * each + 2 * beats * 86_400)
    assert traffic.bytes_down_per_round == traffic.bytes_up_per_round == 150_000_000_000
    assert traffic.bytes_down_per_day == pytest.approx(300e9)
    assert traffic.bytes_up_per_day == pytest.approx(300e9 + beats * 86_400 * BEAT_BYTES)


def test_the_broker_needs_as_many_nodes_as_its_scarcest_limit_requires() -> None:
    assert find_needs(PLAN, LINES).nodes == {
        "connections": None,
        "messages": None,
        "processor time": 1,
    }
    limited = replace(PLAN, node_connections=300_000, node_messages=10_000.0, node_cores=0.005)
    assert find_needs(limited, LINES).nodes == {
        "connections": 4,
        "messages": 2,
        "processor time": 3,
    }


def test_costs_are_those_of_stated_prices_only() -> None:
    assert find_needs(PLAN, LINES).total is None
    priced = replace(
        PLAN,
        heartbeat_us=1200.0,
        node_connections=300_000,
        price_core_hour=0.5,
        price_node_hour=2.0,
        price_gb_down=0.01,
        price_million_minutes=0.1,
    )
    needs = find_needs(priced, LINES)
    assert needs.costs == {
        "processors": pytest.approx(24 * 11 * 0.5),  # 10.06 for the coordinator
        "broker nodes": pytest.approx(24 * 4 * 2.0),
        "bytes to agents": pytest.approx(300 * 0.01),
        "bytes from agents": None,
        "messages": None,
        "connections": pytest.approx(1440 * 0.1),
    }
    assert needs.total == pytest.approx(132 + 192 + 3 + 144)
    assert set(needs.costs) == set(COST_FLAGS)


def test_reasons_to_doubt_an_estimate_are_named(tmp_path: Path) -> None:
    first = make_result(100, 1.0)
    second = replace(make_result(200, 2.5), machine=replace(MACHINE, commit="9876543210"))
    measured = read_points(write(tmp_path, first, second))
    doubts = "\n".join(list_doubts(measured, fit_lines(measured), replace(PLAN, model_bytes=9)))
    for words in (
        "2,500 times as many",
        "third, smaller number",
        "rises with their number (coordinator)",
        "updates of 300,000 bytes",
        "different commits",
    ):
        assert words in doubts
    steady = read_points(
        write(tmp_path, make_result(100, 2.4), make_result(200, 2.8), make_result(1000, 6.0))
    )
    assert list_doubts(steady, fit_lines(steady), replace(PLAN, agents=2000)) == ()


def test_the_command_prints_text_and_json(tmp_path: Path) -> None:
    files = write(tmp_path, make_result(100, 2.4), make_result(200, 2.8), make_result(1000, 7.5))
    text = run(*files, "--heartbeat-us", 150, "--price-node-hour", 2)
    assert text.exit_code == 0, text.output
    for words in (
        "1,000,000 devices",
        "use gateways for",
        "-20.0 %",
        "--price-gb-down",
        "--node-m",
    ):
        assert words in text.stdout
    assert all(one in text.stdout for one in LEFT_OUT)
    found = run(*files, "--agents", 5000, "--format", "json")
    made = json.loads(found.stdout)
    assert made["lines"]["coordinator"]["error"] == pytest.approx(-0.2)
    assert made["plan"]["hours"] == 24
    assert made["plan"]["model_bytes"] == made["measured"]["update_bytes"] == 300_000
    assert msgspec.convert(made["needs"], FleetNeeds).fits


def change(**fields: Any) -> Callable[[BenchmarkResult], BenchmarkResult]:
    return lambda result: replace(result, **fields)


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (lambda result: make_result(100, 2.4), "two or more numbers of agents, found 100, 100"),
        (lambda result: make_result(200, 2.8, workers=1.0), "same settings"),
        (change(machine=replace(MACHINE, processor="Z80")), "same machine"),
        (lambda result: make_result(200, 2.2), "does not rise from 100 to 200 agents"),
        (change(name="round"), "expected a result of scale, found one of round"),
        (change(options={"agents": "many"}), "expected a number from 1, found 'many'"),
        (change(rows=()), "lacks the row"),
        (change(failures=(Failure("200 agents", "no disk"),)), "measurement failed: no disk"),
    ],
)
def test_results_that_make_no_line_are_refused(
    alter: Callable[[BenchmarkResult], BenchmarkResult], words: str, tmp_path: Path
) -> None:
    found = run(*write(tmp_path, make_result(100, 2.4), alter(make_result(200, 2.8))))
    assert (found.exit_code, found.stdout) == (ConfigError.exit_code, "")
    assert words in found.stderr


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    files = write(tmp_path, make_result(100, 2.4), make_result(200, 2.8))
    files[1].write_text("{}")
    damaged, missing = run(*files), run(files[0], tmp_path / "none.json")
    assert (damaged.exit_code, missing.exit_code) == (3, 3)
    assert "1.json: expected a result of python -m benchmarks scale" in damaged.stderr
    assert "none.json: cannot be read" in missing.stderr


def test_updates_cannot_arrive_for_longer_than_a_round(tmp_path: Path) -> None:
    files = write(tmp_path, make_result(100, 2.4), make_result(200, 2.8))
    found = run(*files, "--rounds-per-day", 4, "--hours", 7)
    assert found.exit_code == ConfigError.exit_code
    assert "expected at most 6" in found.stderr


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_numbers_without_a_meaning_are_refused(tmp_path: Path, value: str) -> None:
    for option in ("--hours", "--rounds-per-day", "--price-core-hour"):
        result = run(tmp_path / "unread.json", option, value)
        assert result.exit_code == 2
        assert f"'{option}': expected a finite number, found {value}" in result.output
