"""Counts, seconds, bytes and joules are shown with three digits and a fitting unit."""

from __future__ import annotations

import pytest

from federated.runtime.unit_formatting import human_bytes, human_joules, human_seconds


@pytest.mark.parametrize(
    ("joules", "shown"),
    [
        (0.0, "0 J"),
        (0.1234, "0.123 J"),
        (999.4, "999 J"),
        (999.9, "1 kJ"),
        (1.234e6, "1.23 MJ"),
        (5e13, "5e+04 GJ"),
    ],
)
def test_energy_is_shown_in_the_largest_fitting_unit(joules: float, shown: str) -> None:
    assert human_joules(joules) == shown


def test_seconds_and_bytes_are_shown_in_the_largest_fitting_unit() -> None:
    assert [human_seconds(each) for each in (0.0123, 1.5, 1234.5)] == ["12.3 ms", "1.5 s", "1234 s"]
    assert [human_bytes(each) for each in (999, 1000, 2.5e9)] == ["999 B", "1.0 kB", "2.5 GB"]
