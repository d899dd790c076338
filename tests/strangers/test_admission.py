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
from tests.support.certificate_authority import TlsBroker, member
from tests.support.strangers import receive_all, wait_for_failure

pytestmark = [pytest.mark.broker, needs_mosquitto]


def test_a_client_without_a_certificate_gets_the_advice_to_enrol(tls_broker: TlsBroker) -> None:
    with pytest.raises(LinkError, match="requires a certificate: enrol this device"):
        MqttLink(tls_broker.address(None), "a", timeout=5)


def test_a_password_does_not_replace_a_certificate(tls_broker: TlsBroker) -> None:
    user = COORDINATOR.replace("@", "%40")
    address = f"mqtts://{user}:x@localhost:{tls_broker.port}?ca={tls_broker.authority.ca}"
    with pytest.raises(LinkError, match="requires a certificate"):
        MqttLink(address, "a", timeout=5)


def test_a_certificate_of_another_authority_is_refused_even_with_the_coordinators_name(
    tls_broker: TlsBroker, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "pki")
    with pytest.raises(LinkError, match="does not know the authority"):
        MqttLink(tls_broker.address(other.coordinator), "coordinator-r", timeout=5)
    other.close()


def test_a_client_without_the_authority_does_not_trust_the_broker(
    tls_broker: TlsBroker, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "pki")
    with pytest.raises(LinkError, match="its certificate is not trusted"):
        MqttLink(tls_broker.address(tls_broker.authority.coordinator, ca=other.ca), "a", timeout=5)
    other.close()


def test_plain_mqtt_fails_at_the_port_for_tls(tls_broker: TlsBroker) -> None:
    with pytest.raises(LinkError, match=r"connection was closed|no MQTT broker answers"):
        MqttLink(f"mqtt://localhost:{tls_broker.port}", "a", timeout=5)


def test_no_agent_can_have_the_name_of_the_coordinator(tls_broker: TlsBroker) -> None:
    with pytest.raises(UsageError, match="agent name"):
        tls_broker.authority.invite(COORDINATOR, "localhost", 8884, 60)


def test_a_revoked_agent_is_disconnected_and_cannot_reconnect(
    tls_broker: TlsBroker, hearing: MqttLink, tmp_path: Path
) -> None:
    pem = member(tls_broker.authority, "lost", tmp_path)
    link = MqttLink(tls_broker.address(pem), "r-lost")
    link.publish(topics.say("r", "lost"), b"before")
    assert receive_all(hearing, 1.0) == [(topics.say("r", "lost"), b"before")]
    tls_broker.authority.revoke("lost")
    write_broker_files(tls_broker.authority, tls_broker.files)
    tls_broker.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    link.publish(topics.say("r", "lost"), b"after")
    assert receive_all(hearing, 1.0) == []
    assert "this client's certificate was revoked" in wait_for_failure(link)
    link.close()
    with pytest.raises(LinkError, match="this client's certificate was revoked"):
        MqttLink(tls_broker.address(pem), "r-lost", timeout=5)


def test_a_request_with_another_name_than_in_the_token_is_refused(tls_broker: TlsBroker) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec

    from federated.certificate_request import sign_request

    token = tls_broker.authority.invite("i", "localhost", 8884, 60)
    with pytest.raises(Refused, match="for 'i', not for 'a'"):
        tls_broker.authority.enrol(
            token.secret, sign_request("a", ec.generate_private_key(ec.SECP256R1()))
        )
