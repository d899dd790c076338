"""Checks of the memory and heat, and of what a run needs."""

from __future__ import annotations

from edge_agent.device.heat_and_load import Heat
from edge_agent.doctor import device_checks
from federated.wire import messages
from federated.wire.checks.check_result import Check
from models.submodel import Network
from tests.support.doctor_checks import CARD


def test_too_little_memory_for_the_smallest_submodel_fails() -> None:
    assert device_checks.check_memory(10**6).state == "ok"
    check = device_checks.check_memory(10**15)
    assert (check.state, check.exit) == ("fail", 6)
    assert "method.widths" in check.remedy


def test_the_needs_of_a_run_follow_from_its_card() -> None:
    largest, least = device_checks.compute_required_bytes(CARD) or (0, 0)
    assert largest > 4 * 10_000
    assert least > 16 * 10**6
    assert device_checks.compute_required_bytes(None) is None
    assert (
        device_checks.compute_required_bytes(
            messages.Run(
                "r", "m", "x", Network("nothing:here", "", (1,), 2), CARD.calibration, 32, "s"
            )
        )
        is None
    )


def test_throttling_leads_to_a_warning() -> None:
    assert device_checks.check_heat(Heat()).found == "unknown"
    assert device_checks.check_heat(Heat(51.2, 1500.0, False, False)) == Check(
        "heat", "ok", "51 C, 1500 MHz"
    )
    assert device_checks.check_heat(Heat(84.0, 600.0, True, True)).state == "warn"
