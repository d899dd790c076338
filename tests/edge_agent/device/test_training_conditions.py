"""The owner's conditions decide when a device may train."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from edge_agent.device.heat_and_load import Load
from edge_agent.device.monthly_use import MonthlyUse
from edge_agent.device.training_conditions import Conditions
from federated.errors import ConfigError, UsageError
from tests.support.boards import Board, copy_board, load_board


class Used(Load):
    """Load from other processes as set by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def share(self) -> float:
        return self.now


def conditions(text: str, board: Board, load: Used | None = None) -> Conditions:
    return Conditions(text, board.root, board.run, lambda: load or Used())


def test_empty_conditions_are_always_met() -> None:
    assert conditions("", load_board("container-v2"))() == ""


def test_a_laptop_trains_when_it_is_plugged_in(tmp_path: Path) -> None:
    board = copy_board("laptop-battery", tmp_path)
    when = conditions("charging", board)
    assert when() == "on battery"
    board.write("sys/class/power_supply/AC/online", "1\n")
    assert when() == ""


def test_device_waits_on_metered_network(tmp_path: Path) -> None:
    assert conditions("unmetered", load_board("laptop-battery"))() == "metered network"
    assert conditions("unmetered", load_board("termux"))() == ""


def test_idle_condition_requires_known_load() -> None:
    load = Used()
    load.known = False
    with pytest.raises(ConfigError, match="--when idle: cannot determine the load"):
        conditions("idle", load_board("termux"), load)


def test_a_busy_device_waits() -> None:
    load = Used()
    when = conditions("idle", load_board("pi5"), load)
    assert when() == ""
    load.now = 0.8
    assert when() == "busy: other processes use 80% of the processors"
    load.now = 0.9
    assert when() == "busy: other processes use 80% of the processors", (
        "in the words of when it began"
    )
    load.now = 0.19
    assert when() == ""
    load.now = 0.5
    assert when().endswith("use 50% of the processors")


def test_hot_device_cools_down_before_it_resumes(tmp_path: Path) -> None:
    board = copy_board("pi5", tmp_path)
    when = conditions("temperature<70", board)
    found = []
    for celsius in (51, 69, 70, 68, 66, 69):
        board.write("sys/class/thermal/thermal_zone0/temp", f"{celsius * 1000}\n")
        found.append(when())
    hot = "70 C, not below 70 C"
    assert found == ["", "", hot, hot, "", ""], (
        "the same words while it is the same reason: each other one is a message"
    )


def test_first_unmet_condition_is_reported(tmp_path: Path) -> None:
    board = copy_board("laptop-battery", tmp_path)
    when = conditions("temperature < 60 , charging,unmetered", board)
    assert when() == "67 C, not below 60 C"
    board.write("sys/class/thermal/thermal_zone8/temp", "40000\n")
    assert when() == "on battery"


def test_device_that_can_no_longer_check_does_not_train(tmp_path: Path) -> None:
    board = copy_board("laptop-battery", tmp_path)
    when = conditions("charging", board)
    board.write("sys/class/power_supply/AC/online", "0\n")
    board.write("sys/class/power_supply/BAT0/status", "Unknown\n")
    assert when() == "cannot determine the power source"
    board.write("sys/class/power_supply/BAT0/status", "Charging\n")
    assert when() == ""


@pytest.mark.parametrize(
    ("text", "board", "what"),
    [
        ("charging", "pi5", "the power source"),
        ("unmetered", "container-v1", "whether the network is metered"),
        ("idle,temperature<70", "container-v2", "the temperature"),
    ],
)
def test_uncheckable_condition_is_refused_at_start(text: str, board: str, what: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot determine {what}"):
        conditions(text, load_board(board))


@pytest.mark.parametrize(
    "text",
    [
        "plugged",
        "charging idle",
        "temperature",
        "temperature<",
        "temperature<-5",
        "temperature<0",
        "temperature<999",
        "temperature<nan",
        "temperature<inf",
        "temperature<1e1",
        "idle,",
        "nightly",
        "22-6",
    ],
)
def test_unknown_condition_lists_the_known_ones(text: str) -> None:
    with pytest.raises(
        UsageError,
        match="one of HH:MM-HH:MM, charging, energy<JOULES, idle, temperature<DEGREES, "
        "traffic<SIZE, unmetered",
    ):
        conditions(text, load_board("laptop-battery"))


@pytest.mark.parametrize(
    ("hours", "allowed"),
    [
        ("22:00-06:00", [0, 1, 2, 3, 4, 5, 22, 23]),
        ("9:00 - 17:00", [9, 10, 11, 12, 13, 14, 15, 16]),
        ("23:59-0:01", [0]),
    ],
)
def test_a_device_trains_only_in_its_hours(hours: str, allowed: list[int]) -> None:
    clocks = [partial(datetime, 2026, 11, 27, hour) for hour in range(24)]
    found = [hour for hour in range(24) if not Conditions(hours, clock=clocks[hour])()]
    assert found == allowed


def test_hours_are_named_when_a_device_waits_for_them() -> None:
    when = Conditions("22:00-6:00", clock=lambda: datetime(2026, 11, 27, 6, 0))
    assert when() == "not between 22:00 and 06:00"


@pytest.mark.parametrize(
    "text",
    [
        "24:00-06:00",
        "22:60-06:00",
        "06:00-06:00",
        "traffic<much",
        "traffic<nanGB",
        "energy<9",
        "energy<nanJ",
    ],
)
def test_impossible_hours_and_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"--when {text}: expected"):
        Conditions(text)


def test_a_device_whose_traffic_is_used_up_waits_for_the_next_month(tmp_path: Path) -> None:
    sent, month = 0, "2026-11"
    traffic = MonthlyUse(tmp_path / "traffic.json", 1 << 20, lambda: month)
    traffic.watch(lambda: sent)
    when = Conditions("traffic < 2MB", uses={"traffic": traffic})
    sent = 1_999_999
    assert when() == ""
    sent = 2_500_000
    assert when() == "used 2.0 MB of traffic this month"
    month = "2026-12"
    assert when() == ""


def test_a_device_that_cannot_store_its_traffic_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot determine the traffic"):
        Conditions("traffic<2GB", uses={"traffic": MonthlyUse(tmp_path / "file" / "t.json", 1)})


@pytest.mark.parametrize(
    ("text", "joules"),
    [("500kJ", 500_000), ("90 J", 90), ("1.5MJ", 1_500_000), ("2Wh", 7200), ("0.1kWh", 360_000)],
)
def test_a_device_whose_energy_is_used_up_waits(tmp_path: Path, text: str, joules: int) -> None:
    used, energy = 0, MonthlyUse(tmp_path / "energy.json", 1000)
    energy.watch(lambda: used)
    when = Conditions(f"energy<{text}", uses={"energy": energy})
    used = joules - 1
    assert when() == ""
    used = joules
    assert when() == f"used {text} of energy this month"


def test_a_device_without_a_power_sensor_is_told_to_state_its_power() -> None:
    with pytest.raises(ConfigError, match=r"energy<5kJ: cannot determine the energy .*--watts"):
        Conditions("energy<5kJ")
