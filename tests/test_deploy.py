"""Tests that other programs accept the shipped configuration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.broker.local_addresses import find_free_port
from coordinator.broker.local_broker import find_mosquitto
from tests.support.links import connect

CONFIGURATION = Path(__file__).parents[1] / "deploy" / "mosquitto" / "espalier.conf"


@pytest.mark.broker
def test_mosquitto_accepts_the_shipped_configuration_and_a_chunk(tmp_path: Path) -> None:
    program = find_mosquitto()
    if program is None:
        pytest.skip("mosquitto is not installed")
    port = find_free_port("127.0.0.1", 0)
    configuration = tmp_path / "espalier.conf"
    text = CONFIGURATION.read_text().replace("listener 1883", f"listener {port}")
    configuration.write_text(text + f"persistence_location {tmp_path}/\nuser root\n")
    broker = subprocess.Popen(
        [program, "-c", str(configuration)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        link = connect(f"127.0.0.1:{port}", "deploy-test")
        largest, _ = link.probe("fl/v1/test/agent/a/probe")
        assert largest >= 256 * 1024
        link.close()
    finally:
        broker.terminate()
        broker.wait()


def test_the_file_for_continuous_integration_is_valid() -> None:
    check = Path(sys.executable).with_name("check-jsonschema")
    workflow = Path(__file__).parents[1] / ".github/workflows/tests.yml"
    subprocess.run(
        [check, "--builtin-schema", "vendor.github-workflows", workflow],
        check=True,
        capture_output=True,
    )
