"""Boards are identified from recorded file trees."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from edge_agent.device import sysfs
from edge_agent.device.board import read_board, read_governor, read_processor_name
from edge_agent.device.sysfs import run_command
from federated.task import Board
from tests.support.boards import copy_board, load_board
from tests.support.waiting import eventually


@pytest.mark.parametrize(
    ("name", "board"),
    [
        ("pi5", Board("pi", "Raspberry Pi 5 Model B Rev 1.0", "VideoCore (v3d)", True, "")),
        (
            "pi4-throttled",
            Board("pi", "Raspberry Pi 4 Model B Rev 1.4", "VideoCore (v3d)", True, ""),
        ),
        (
            "jetson-orin",
            Board(
                "jetson",
                "NVIDIA Jetson Orin Nano Developer Kit, power mode 15W",
                "NVIDIA Ampere (tegra234)",
                True,
                "",
            ),
        ),
        ("termux", Board("android", "samsung SM-G991B", "mali", True, "battery")),
        ("laptop-battery", Board("generic", "LENOVO 20XW005PGE", "Intel (i915)", True, "battery")),
        ("container-v1", Board("generic", "", "", False, "")),
        ("container-v2", Board("generic", "QEMU Standard PC (Q35 + ICH9, 2009)", "", False, "")),
    ],
)
def test_board_is_read_from_files_and_commands(name: str, board: Board) -> None:
    found = load_board(name)
    assert read_board(found.root, found.run, found.environment) == board


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("pi5", "0xd0b"),
        ("termux", "0xd05 0xd41 0xd44"),
        ("laptop-battery", "11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz"),
        ("container-v2", "AMD EPYC 7763 64-Core Processor"),
    ],
)
def test_processor_name_falls_back_to_part_numbers(name: str, named: str) -> None:
    assert read_processor_name(load_board(name).root).endswith(named)


def test_the_governors_of_all_processors_are_read(tmp_path: Path) -> None:
    found = copy_board("container-v1", tmp_path)
    assert read_governor(found.root / "none") == ""
    for processor, governor in ((0, "schedutil"), (1, "schedutil"), (4, "performance")):
        path = f"sys/devices/system/cpu/cpu{processor}/cpufreq/scaling_governor"
        found.write(path, f"{governor}\n")
    assert read_governor(found.root) == "performance schedutil"


def test_jetson_power_mode_is_read_from_nvpmodel_first(tmp_path: Path) -> None:
    found = copy_board("jetson-orin", tmp_path)
    found.write("commands/nvpmodel_-q", "NV Fan Mode:quiet\nNV Power Mode: MAXN_SUPER\n2\n")
    assert read_board(found.root, found.run, {}).model.endswith("power mode MAXN_SUPER")


def test_graphics_card_has_driver_name_and_separate_memory(tmp_path: Path) -> None:
    found = copy_board("container-v1", tmp_path)
    found.write(
        "proc/driver/nvidia/gpus/0000:65:00.0/information",
        "Model: \t\t NVIDIA L4\nIRQ:   \t\t 162\nGPU UUID: \t GPU-0\n",
    )
    assert (board := read_board(found.root, found.run, {})).gpu == "NVIDIA L4"
    assert not board.shared
    found.write("sys/class/drm/card0/device/uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n")
    (found.root / "proc/driver/nvidia/gpus/0000:65:00.0/information").unlink()
    assert read_board(found.root, found.run, {}) == Board("generic", "", "AMD (amdgpu)", False, "")


def test_this_machine_is_read_without_an_error() -> None:
    assert read_board().kind in ("pi", "jetson", "android", "generic")
    assert read_processor_name()


def test_missing_or_failing_command_returns_empty_output() -> None:
    assert run_command("no-such-command-here") == ""
    assert run_command("false") == ""
    assert run_command("echo", "here") == "here"


def test_hanging_command_is_killed_with_its_children(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sysfs, "PATIENCE", 0.5)
    script = f"sleep 600 & echo $! > {tmp_path}/child; wait"
    assert run_command("sh", "-c", script) == ""
    child = psutil.Process(int((tmp_path / "child").read_text()))
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
