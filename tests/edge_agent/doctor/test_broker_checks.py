"""Checks at a real broker."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.access.certificate_authority import Authority
from coordinator.access.enrolment_server import EnrolmentServer
from coordinator.broker import local_broker as brokers
from edge_agent.access.broker_credentials import resolve_broker
from federated.wire import envelope, messages
from federated.wire.checks.check_result import format_check
from federated.wire.link import CHUNK, OVERHEAD
from federated.wire.links import mqtt_client_setup
from federated.wire.links.catalogue import open_link
from federated.wire.mqtt_address import add_credentials, format_url, parse_mqtt_address
from tests.support.brokers import needs_mosquitto
from tests.support.certificate_authority import member, shipped
from tests.support.certificates import certificate
from tests.support.doctor_checks import CARD, check_broker, coordinating, states

pytestmark = [pytest.mark.broker]


@needs_mosquitto
def test_a_broker_with_users_and_a_coordinator_pass_every_check(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("pi:secret-of-pi\npa:secret-of-pa\n")
    with (
        brokers.start(
            port=0, kind="mosquitto", directory=tmp_path / "b", clients=tmp_path / "users"
        ) as broker,
        coordinating(broker.url, tmp_path),
    ):
        found = check_broker(f"mqtt://pi:secret-of-pi@{broker.address}")
        other = check_broker(f"mqtt://pa:secret-of-pa@{broker.address}", last="rights")
        wrong = check_broker(f"mqtt://pi:no@{broker.address}")
    assert set(states(found).values()) == {"ok"}, [format_check(check) for check in found.values()]
    assert found.keys() == {
        "dns",
        "tcp",
        "tls",
        "credentials",
        "run",
        "rights",
        "strangers",
        "order",
        "retained",
        "wildcards",
        "levels",
        "length",
        "packets",
        "will",
        "session",
        "shared",
        "coordinator",
        "skew",
        "clock",
    }
    assert other["rights"].state == "fail", "pa may not publish as pi"
    assert "use %u" in other["rights"].remedy
    assert wrong["credentials"].state == "fail"
    assert "mqtt://user:password@host" in wrong["credentials"].remedy
    assert "secret-of-pi" not in " ".join(map(format_check, found.values()))


@needs_mosquitto
def test_only_an_enrolled_device_with_its_own_name_passes(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "pki")
    with (
        shipped("tls.conf", authority, tmp_path) as tls_broker,
        coordinating(tls_broker.address(authority.coordinator), tmp_path),
    ):
        mine = member(authority, "pi", tmp_path)
        ca = certificate(["x"], (-1, 30), tmp_path, "other")
        found, other = (
            check_broker(format_url(tls_broker.address(mine))),
            check_broker(format_url(tls_broker.address(mine)), "pa", last="rights"),
        )
        nobody, foreign = (
            check_broker(format_url(tls_broker.address(None))),
            check_broker(format_url(tls_broker.address(mine, ca=ca))),
        )
    authority.close()
    assert set(states(found).values()) == {"ok"}, [format_check(check) for check in found.values()]
    assert "TLSv1.3" in found["tls"].found
    assert "accepted by certificate" in found["credentials"].found
    assert found["certificate"].found.startswith("of pi, ")
    assert found["strangers"].found.startswith("the broker separates the topics of agents")
    assert (other["certificate"].state, other["rights"].state) == ("fail", "fail")
    assert list(states(nobody).values())[-1] == "fail"
    assert "edge-agent join --token" in format_check(list(nobody.values())[-1])
    assert states(foreign) == {"dns": "ok", "tcp": "ok", "tls": "fail"}
    assert "name its authority" in foreign["tls"].remedy


@needs_mosquitto
def test_a_revoked_certificate_is_not_called_valid(tmp_path: Path) -> None:
    with closing(Authority(tmp_path / "pki")) as authority:
        mine = member(authority, "pi", tmp_path)
        authority.revoke("pi")
        with (
            shipped("tls.conf", authority, tmp_path) as tls_broker,
            coordinating(tls_broker.address(authority.coordinator), tmp_path),
        ):
            found = check_broker(format_url(tls_broker.address(mine)))
    assert "certificate" not in found
    refused = found["credentials"]
    assert (refused.state, "revoked" in format_check(refused)) == ("fail", True)


@needs_mosquitto
def test_an_enrolled_device_passes_over_websockets_and_is_told_that_mosquitto_is_slow(
    tmp_path: Path, device: Path
) -> None:
    with (
        closing(Authority(tmp_path / "pki")) as authority,
        shipped("tls.conf", authority, tmp_path, websockets=True) as tls_broker,
    ):
        public = f"wss://localhost:{tls_broker.port}"
        server = EnrolmentServer(authority, ("127.0.0.1", 0), public)
        coordinator = add_credentials(
            parse_mqtt_address(public), str(authority.ca), str(authority.coordinator)
        )
        with closing(server), coordinating(coordinator, tmp_path):
            token = authority.invite("pi", "localhost", server.port, 60)
            broker, name = resolve_broker(None, None, str(token))
            found = check_broker(broker, name)
    assert broker.startswith(f"{public}/mqtt?ca=")
    slow = found.pop("websockets")
    assert [format_check(check) for check in found.values() if check.state != "ok"] == []
    assert slow.state == "warn"
    assert "wire.chunk=3000" in slow.remedy


@needs_mosquitto
def test_a_broker_without_authentication_or_runs_leads_to_warnings(tmp_path: Path) -> None:
    with brokers.start(port=0, kind="mosquitto", directory=tmp_path) as broker:
        found = check_broker(broker.address)
    assert {name for name, state in states(found).items() if state != "ok"} == {"run", "strangers"}
    assert found["strangers"].found == "any client may publish under another's name"


@needs_mosquitto
@pytest.mark.parametrize(
    ("limit", "state"), [(100_000, "warn"), (20_000, "fail"), (CHUNK + 3 * OVERHEAD, "ok")]
)
def test_a_small_packet_limit_is_found(limit: int, state: str, tmp_path: Path) -> None:
    with brokers.start(port=0, kind="mosquitto", directory=tmp_path, max_packet=limit) as broker:
        check = check_broker(broker.address, last="packets")["packets"]
    assert check.state == state, format_check(check)
    assert f"the broker states {limit} bytes" in check.found
    assert ("max_packet_size" in check.remedy) == (state != "ok")


@needs_mosquitto
def test_a_silent_coordinator_and_several_runs_are_reported(
    tmp_path: Path,
) -> None:
    with brokers.start(port=0, kind="mosquitto", directory=tmp_path) as broker:
        link = open_link(broker.address, "a coordinator that hangs")
        link.publish("fl/v1/r/run", envelope.encode(CARD), retain=True)
        alone = check_broker(broker.address)
        link.publish(
            "fl/v1/q/run",
            envelope.encode(messages.Run("q", "fedavg", "preresnet", None, (), 32, "s")),
            retain=True,
        )
        time.sleep(0.2)
        several = check_broker(broker.address, last="run")
        named = check_broker(broker.address, run="q", last="run")
        link.close()
    assert alone["coordinator"].state == "warn"
    assert (several["run"].state, several["run"].exit) == ("fail", 6)
    assert "choose one with --run" in several["run"].remedy
    assert named["run"].state == "ok"


def test_a_broker_with_the_older_protocol_is_checked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        brokers.start(port=0, kind="embedded", directory=tmp_path) as broker,
        coordinating(broker.url, tmp_path),
    ):
        # as in a process that tries MQTT 5 first
        monkeypatch.setattr(mqtt_client_setup, "KNOWN_VERSIONS", {})
        found = check_broker(broker.address)
    assert "MQTT 3.1.1" in found["credentials"].found
    assert {name for name, state in states(found).items() if state != "ok"} == {"strangers"}, [
        format_check(check) for check in found.values()
    ]
