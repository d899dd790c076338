"""Power source and metered networks are read from recorded boards."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.device.board import is_metered, read_power
from tests.support.boards import copy_board, load_board

BATTERY = "sys/class/power_supply/BAT0/status"


@pytest.mark.parametrize(
    ("name", "power"),
    [("laptop-battery", "battery"), ("termux", "battery"), ("pi5", ""), ("container-v2", "")],
)
def test_power_is_read_from_supplies(name: str, power: str) -> None:
    found = load_board(name)
    assert read_power(found.root, found.run) == power


def test_a_laptop_that_is_plugged_in_or_charges_is_on_mains(tmp_path: Path) -> None:
    found = copy_board("laptop-battery", tmp_path)
    found.write(BATTERY, "Charging\n")
    assert read_power(found.root, found.run) == "mains"
    found.write(BATTERY, "Discharging\n")  # a weak supply: it is plugged in all the same
    found.write("sys/class/power_supply/AC/online", "1\n")
    assert read_power(found.root, found.run) == "mains"


def test_a_phone_that_is_plugged_in_is_on_mains(tmp_path: Path) -> None:
    found = copy_board("termux", tmp_path)
    found.write(
        "commands/termux-battery-status", '{"plugged": "PLUGGED_USB", "status": "CHARGING"}'
    )
    assert read_power(found.root, found.run) == "mains"
    found.write("commands/termux-battery-status", "the API is not installed")
    assert read_power(found.root, found.run) == ""


@pytest.mark.parametrize(
    ("name", "metered"), [("laptop-battery", True), ("termux", False), ("pi5", None)]
)
def test_metered_network_is_read_from_the_system(name: str, metered: bool | None) -> None:
    found = load_board(name)
    assert is_metered(found.root, found.run) is metered


@pytest.mark.parametrize(
    ("said", "metered"),
    [("u 1", True), ("u 2", False), ("u 3", True), ("u 4", False), ("u 0", None)],
)
def test_network_manager_is_read_over_dbus(said: str, metered: bool | None) -> None:
    name = "org.freedesktop.NetworkManager"
    answer = {
        ("busctl", "get-property", name, "/org/freedesktop/NetworkManager", name, "Metered"): said
    }
    assert is_metered(load_board("pi5").root, lambda *words: answer.get(words, "")) is metered


def test_phone_without_wifi_is_metered(tmp_path: Path) -> None:
    found = copy_board("termux", tmp_path)
    found.write(
        "commands/termux-wifi-connectioninfo",
        '{"supplicant_state": "DISCONNECTED", "ip": "0.0.0.0"}',
    )
    assert is_metered(found.root, found.run) is True
