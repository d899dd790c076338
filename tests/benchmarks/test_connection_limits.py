"""The limits of connections, which a benchmark with many agents states before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.raw_agents.connection_limits import ConnectionLimits, read_limits
from federated.errors import ConfigError


@pytest.mark.parametrize(("reserved", "ports"), [("", 100), ("5,1010-1019,1099,2000", 89)])
def test_ports_are_those_of_the_range_without_reserved_ones(
    reserved: str, ports: int, tmp_path: Path
) -> None:
    (tmp_path / "ip_local_port_range").write_text("1000\t1099\n")
    (tmp_path / "ip_local_reserved_ports").write_text(f"{reserved}\n")
    assert read_limits(tmp_path).ports == ports


def test_another_system_does_not_say_how_many_ports_there_are(tmp_path: Path) -> None:
    limits = read_limits(tmp_path)
    assert limits.ports is None
    assert "unknown ports" in limits.describe(2)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (ConnectionLimits(163, None), "may open 163 files, but 164 are needed .*ulimit -Hn"),
        (ConnectionLimits(None, 163), "163 ports .*164 are needed .*ip_local_port_range"),
    ],
)
def test_more_agents_than_a_limit_allows_are_an_error(limits: ConnectionLimits, words: str) -> None:
    limits.check(99)
    with pytest.raises(ConfigError, match=words):
        limits.check(100)


def test_scale_stops_before_it_needs_more_than_there_are() -> None:
    stopped = CliRunner().invoke(main, ["scale", "--agents", "10000000"])
    assert stopped.exit_code == ConfigError.exit_code
    assert "ports for connections to one address; needed: 10,000,064 of each" in stopped.output
    assert "10,000,064 are needed" in stopped.stderr
