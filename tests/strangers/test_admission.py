"""Only enrolled clients can connect to a real mosquitto with the shipped files."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from coordinator.access.broker_files import write_broker_files
from coordinator.access.certificate_authority import Authority
from coordinator.broker.mosquitto_config import COORDINATOR
from federated.errors import LinkError, Refused, UsageError
from federated.wire import topics
from federated.wire.links.mqtt import MqttLink
from tests.support.brokers import needs_mosquitto
from tests.support.certificate_authority import Door, member
from tests.support.strangers import receive_all, wait_for_failure

pytestmark = [pytest.mark.broker, needs_mosquitto]


def test_a_client_without_a_certificate_gets_the_advice_to_enrol(door: Door) -> None:
    with pytest.raises(LinkError, match="requires a certificate: enrol this device"):
        MqttLink(door.address(None), "a", timeout=5)


def test_a_password_does_not_replace_a_certificate(door: Door) -> None:
    user = COORDINATOR.replace("@", "%40")
    address = f"mqtts://{user}:x@localhost:{door.port}?ca={door.authority.ca}"
    with pytest.raises(LinkError, match="requires a certificate"):
        MqttLink(address, "a", timeout=5)


def test_a_certificate_of_another_authority_is_refused_even_with_the_coordinators_name(
    door: Door, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "pki")
    with pytest.raises(LinkError, match="does not know the authority"):
        MqttLink(door.address(other.coordinator), "coordinator-r", timeout=5)
    other.close()


def test_a_client_without_the_authority_does_not_trust_the_broker(
    door: Door, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "pki")
    with pytest.raises(LinkError, match="its certificate is not trusted"):
        MqttLink(door.address(door.authority.coordinator, ca=other.ca), "a", timeout=5)
    other.close()


def test_plain_mqtt_fails_at_the_port_for_tls(door: Door) -> None:
    with pytest.raises(LinkError, match=r"connection was closed|no MQTT broker answers"):
        MqttLink(f"mqtt://localhost:{door.port}", "a", timeout=5)


def test_no_agent_can_have_the_name_of_the_coordinator(door: Door) -> None:
    with pytest.raises(UsageError, match="agent name"):
        door.authority.invite(COORDINATOR, "localhost", 8884, 60)


def test_a_revoked_agent_is_disconnected_and_cannot_reconnect(
    door: Door, hearing: MqttLink, tmp_path: Path
) -> None:
    pem = member(door.authority, "lost", tmp_path)
    link = MqttLink(door.address(pem), "r-lost")
    link.publish(topics.say("r", "lost"), b"before")
    assert receive_all(hearing, 1.0) == [(topics.say("r", "lost"), b"before")]
    door.authority.revoke("lost")
    write_broker_files(door.authority, door.files)
    door.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    link.publish(topics.say("r", "lost"), b"after")
    assert receive_all(hearing, 1.0) == []
    assert "this client's certificate was revoked" in wait_for_failure(link)
    link.close()
    with pytest.raises(LinkError, match="this client's certificate was revoked"):
        MqttLink(door.address(pem), "r-lost", timeout=5)


def test_a_request_with_another_name_than_in_the_token_is_refused(door: Door) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec

    from edge_agent.access.enrolment import sign_request

    token = door.authority.invite("i", "localhost", 8884, 60)
    with pytest.raises(Refused, match="for 'i', not for 'a'"):
        door.authority.enrol(
            token.secret, sign_request("a", ec.generate_private_key(ec.SECP256R1()))
        )
