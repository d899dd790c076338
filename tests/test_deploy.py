"""Tests that other programs accept the shipped configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.broker.local_addresses import find_free_port
from coordinator.broker.local_broker import find_mosquitto
from tests.support.links import connect

MOSQUITTO = Path(__file__).parents[1] / "deploy" / "mosquitto"
CONFIGURATION = MOSQUITTO / "espalier.conf"
# in a network of its own: load the rule, and print how many of 300 connections of one address, and
# of 20 of another, arrive within half a second
FLOOD = """
import socket, subprocess, sys, time

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["nft", "-f", sys.argv[1]], check=True)
listener = socket.create_server(("127.0.0.1", 8883), backlog=4096)
for address, count in (("127.0.0.2", 300), ("127.0.0.3", 20)):
    pending = []
    for _ in range(count):
        link = socket.socket()
        link.bind((address, 0))
        link.setblocking(False)
        link.connect_ex(("127.0.0.1", 8883))
        pending.append(link)
    time.sleep(0.5)
    accepted = 0
    listener.setblocking(False)
    try:
        while True:
            listener.accept()[0].close()
            accepted += 1
    except BlockingIOError:
        print(accepted)
"""


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


@pytest.mark.skipif(os.geteuid() != 0, reason="firewall rules need root")
@pytest.mark.skipif(
    not (shutil.which("nft") and shutil.which("unshare") and shutil.which("ip")),
    reason="nftables, unshare or iproute2 is not installed",
)
def test_the_firewall_rule_limits_a_stranger_and_nobody_else() -> None:
    rule = MOSQUITTO / "connection-limit.nft"
    words = ["unshare", "--net", sys.executable, "-c", FLOOD, str(rule)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    stranger, other = (int(count) for count in done.stdout.split())
    assert 200 <= stranger <= 230
    assert other == 20


def test_the_file_for_continuous_integration_is_valid() -> None:
    check = Path(sys.executable).with_name("check-jsonschema")
    workflow = Path(__file__).parents[1] / ".github/workflows/tests.yml"
    subprocess.run(
        [check, "--builtin-schema", "vendor.github-workflows", workflow],
        check=True,
        capture_output=True,
    )
