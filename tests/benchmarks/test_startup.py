"""The benchmark of start-up: that it measures the command and not its own process, and how it
compares.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks.startup.command import JOIN, REST, Usage, make_rows, measure_command
from federated.errors import FleetError


def test_a_command_counts_its_own_memory_and_time() -> None:
    held = np.ones(100_000_000, np.uint8)  # which a command would inherit, if forked from here
    small = measure_command([sys.executable, "-S", "-c", "pass"])
    large = measure_command([sys.executable, "-S", "-c", "b'1' * 60_000_000"])
    assert small.size < 40_000_000 < large.size - small.size < 80_000_000, len(held)
    busy = measure_command(
        [sys.executable, "-S", "-c", "import time\nwhile time.process_time() < 0.3: pass"]
    )
    assert 0.3 <= busy.seconds < 0.6


def test_a_command_that_fails_is_named_with_its_error() -> None:
    with pytest.raises(FleetError, match=r"exit code 3(.|\n)*out of luck"):
        measure_command(
            [sys.executable, "-c", "import sys; print('out of luck', file=sys.stderr); sys.exit(3)"]
        )


def test_commands_are_compared_with_limits_and_peers() -> None:
    found = {
        "coordinator --help": Usage(0.2, 50_000_000),
        JOIN: Usage(6.0, 400_000_000),
        REST: Usage(0.0, 200_000_000),
        "flwr --help": Usage(0.1, 100_000_000),
        "import click, msgspec": Usage(0.1, 25_000_000),
        "import torch": Usage(2.0, 200_000_000),
    }
    rows = {(row.name, row.baseline.name): row for row in make_rows(found, ("flwr",))}
    time, memory = "{}, processor time (ms)".format, "{}, memory (MB)".format
    assert rows[time("coordinator --help"), "at most"].met
    assert not rows[time("coordinator --help"), "flwr --help"].met
    assert rows[memory("coordinator --help"), "flwr --help"].ratio == 2
    assert rows[time("coordinator --help"), "import click, msgspec"].met is None
    assert not rows[time(JOIN), "at most"].met
    assert rows[memory(JOIN), "import torch"].ratio == 0.5
    assert rows[memory(REST), "at most"].met
    assert (time(JOIN), "flwr --help") not in rows
