"""What brokers can do."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from coordinator.broker.local_addresses import find_free_port
from coordinator.broker.mosquitto_config import find_mosquitto
from federated.wire.checks import broker_capability_checks, request_client
from federated.wire.checks.broker_capability_checks import Place, try_broker
from federated.wire.checks.check_result import Check, format_check
from federated.wire.mqtt_address import parse_mqtt_address
from tests.support.brokers import BOTH, is_listening, needs_mosquitto
from tests.support.waiting import eventually

pytestmark = pytest.mark.broker
NAMES = [
    *("order", "retained", "wildcards", "levels", "length"),
    *("packets", "will", "session", "shared"),
]


def try_all(address: str) -> list[Check]:
    return list(try_broker(Place(parse_mqtt_address(address), "r", "pi")))


@pytest.mark.parametrize("kind", BOTH)
def test_a_broker_that_can_do_everything_passes(kind: str, tmp_path: Path) -> None:
    with brokers.start(port=0, kind=kind, directory=tmp_path) as broker:
        found = try_all(broker.address)
    assert [check.name for check in found] == NAMES
    assert {check.state for check in found} == {"ok"}, [format_check(check) for check in found]
    assert found[-1].found.startswith("clients can share")


@contextlib.contextmanager
def open_mosquitto(folder: Path, *lines: str) -> Iterator[str]:
    """Run mosquitto with a configuration; yield its address."""
    program, port = find_mosquitto(), find_free_port("127.0.0.1", 0)
    assert program is not None
    settings = ("allow_anonymous true", f"listener {port} 127.0.0.1", *lines)
    (folder / "small.conf").write_text("\n".join(settings) + "\n")
    server = subprocess.Popen(
        [program, "-c", str(folder / "small.conf")], stderr=subprocess.DEVNULL
    )
    try:
        assert eventually(lambda: is_listening(f"127.0.0.1:{port}"), 30)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@needs_mosquitto
@pytest.mark.parametrize(
    ("lines", "missing"),
    [
        (["retain_available false"], {"retained": "fail", "will": "warn"}),
        (["max_queued_messages 1", "max_inflight_messages 1"], {"order": "fail"}),
        (["max_packet_size 40000"], {"packets": "warn"}),
    ],
)
def test_what_a_broker_lacks_is_found(
    lines: list[str], missing: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_client, "TIMEOUT", 2.0)
    # a receiver that acknowledges quickly may keep the queue of this broker empty for 50 messages
    monkeypatch.setattr(broker_capability_checks, "MESSAGES", 2000)
    with open_mosquitto(tmp_path, *lines) as address:
        found = try_all(address)
    assert {check.name: check.state for check in found if check.state != "ok"} == missing, [
        format_check(check) for check in found
    ]
    assert all(check.remedy for check in found if check.state != "ok")
