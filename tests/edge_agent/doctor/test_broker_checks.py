"""What a real broker lets a device do, and what it does not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from coordinator.access.authority import Authority
from coordinator.broker import local as brokers
from edge_agent.doctor.check import text
from federated.wire import envelope, messages
from federated.wire.address import url
from federated.wire.link import CHUNK, OVERHEAD
from federated.wire.links.catalogue import open_link
from tests.support.authority import member, shipped
from tests.support.brokers import needs_mosquitto
from tests.support.certificates import certificate
from tests.support.doctor import CARD, coordinating, states, tried

pytestmark = pytest.mark.broker


@needs_mosquitto
def test_a_broker_with_users_and_a_coordinator_pass_every_check(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("pi:secret-of-pi\npa:secret-of-pa\n")
    with (
        brokers.start(
            port=0, kind="mosquitto", directory=tmp_path / "b", clients=tmp_path / "users"
        ) as broker,
        coordinating(broker.url, tmp_path),
    ):
        found = tried(f"mqtt://pi:secret-of-pi@{broker.address}")
        other = tried(f"mqtt://pa:secret-of-pa@{broker.address}")
        wrong = tried(f"mqtt://pi:no@{broker.address}")
    assert set(states(found).values()) == {"ok"}, [text(check) for check in found.values()]
    assert found.keys() == {
        "dns",
        "tcp",
        "tls",
        "credentials",
        "run",
        "rights",
        "strangers",
        "packets",
        "coordinator",
        "skew",
        "clock",
    }
    assert other["rights"].state == "fail", "pa may not speak as pi"
    assert "use %u" in other["rights"].remedy
    assert wrong["credentials"].state == "fail"
    assert "mqtt://user:password@host" in wrong["credentials"].remedy
    assert "secret-of-pi" not in " ".join(map(text, found.values()))


@needs_mosquitto
def test_an_enrolled_device_passes_and_one_without_a_certificate_or_of_another_name_does_not(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "pki")
    with (
        shipped("tls.conf", authority, tmp_path) as door,
        coordinating(door.address(authority.coordinator), tmp_path),
    ):
        mine = member(authority, "pi", tmp_path)
        ca = certificate(["x"], (-1, 30), tmp_path, "other")
        found, other = tried(url(door.address(mine))), tried(url(door.address(mine)), "pa")
        nobody, foreign = tried(url(door.address(None))), tried(url(door.address(mine, ca=ca)))
    authority.close()
    assert set(states(found).values()) == {"ok"}, [text(check) for check in found.values()]
    assert "TLSv1.3" in found["tls"].found
    assert "let in by its certificate" in found["credentials"].found
    assert found["certificate"].found.startswith("of pi, ")
    assert found["strangers"].found.startswith("the broker keeps agents from each other's topics")
    assert (other["certificate"].state, other["rights"].state) == ("fail", "fail")
    assert list(states(nobody).values())[-1] == "fail"
    assert "edge-agent join --token" in text(list(nobody.values())[-1])
    assert states(foreign) == {"dns": "ok", "tcp": "ok", "tls": "fail"}
    assert "give its authority" in foreign["tls"].remedy


@needs_mosquitto
def test_a_broker_that_knows_nobody_and_has_no_run_is_warned_of(tmp_path: Path) -> None:
    with brokers.start(port=0, kind="mosquitto", directory=tmp_path) as broker:
        found = tried(broker.address)
    assert {name for name, state in states(found).items() if state != "ok"} == {"run", "strangers"}
    assert found["strangers"].found == "any client may publish under another's name"


@needs_mosquitto
@pytest.mark.parametrize(
    ("limit", "state"), [(100_000, "warn"), (20_000, "fail"), (CHUNK + 3 * OVERHEAD, "ok")]
)
def test_a_small_packet_limit_is_found(limit: int, state: str, tmp_path: Path) -> None:
    with brokers.start(port=0, kind="mosquitto", directory=tmp_path, max_packet=limit) as broker:
        check = tried(broker.address)["packets"]
    assert check.state == state, text(check)
    assert f"the broker says {limit} bytes" in check.found
    assert ("max_packet_size" in check.remedy) == (state != "ok")


@needs_mosquitto
def test_a_coordinator_that_does_not_answer_and_runs_to_choose_from_are_said(
    tmp_path: Path,
) -> None:
    with brokers.start(port=0, kind="mosquitto", directory=tmp_path) as broker:
        link = open_link(broker.address, "a coordinator that hangs")
        link.publish("fl/v1/r/run", envelope.encode(CARD), retain=True)
        alone = tried(broker.address)
        link.publish(
            "fl/v1/q/run",
            envelope.encode(messages.Run("q", "fedavg", "preresnet", None, (), 32, "s")),
            retain=True,
        )
        time.sleep(0.2)
        several, named = tried(broker.address), tried(broker.address, run="q")
        link.close()
    assert alone["coordinator"].state == "warn"
    assert (several["run"].state, several["run"].exit) == ("fail", 6)
    assert "choose one by --run" in several["run"].remedy
    assert named["run"].state == "ok"


def test_a_broker_of_the_older_protocol_is_tried_too(tmp_path: Path) -> None:
    with (
        brokers.start(port=0, kind="embedded", directory=tmp_path) as broker,
        coordinating(broker.url, tmp_path),
    ):
        found = tried(broker.address)
    assert "MQTT 3.1.1" in found["credentials"].found
    assert {name for name, state in states(found).items() if state != "ok"} == {"strangers"}, [
        text(check) for check in found.values()
    ]
