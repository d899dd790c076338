"""A client cannot disconnect another by connecting with its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.broker.local_broker import start
from federated.wire.links.mqtt import MqttLink
from federated.wire.links.mqtt_client_setup import ClientSetup, connect
from federated.wire.mqtt_address import parse_mqtt_address
from tests.support.brokers import needs_mosquitto
from tests.support.certificate_authority import TlsBroker, member
from tests.support.strangers import receive_all

pytestmark = [pytest.mark.broker, needs_mosquitto]


def test_no_agent_can_disconnect_another_with_its_name(
    tls_broker: TlsBroker, tmp_path: Path
) -> None:
    mine, theirs = (
        member(tls_broker.authority, "f", tmp_path),
        member(tls_broker.authority, "g", tmp_path),
    )
    there = MqttLink(tls_broker.address(theirs), "r-g")
    # the id that another client would guess for g's link
    MqttLink(tls_broker.address(mine), "r-g").close()
    assert receive_all(there, 1.0) == []
    there.close()


def test_no_user_with_a_password_can_disconnect_another(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("a:first-secret\nb:other-secret\n")
    with start("127.0.0.1", 0, "mosquitto", tmp_path / "broker", tmp_path / "users") as broker:
        there = MqttLink(f"mqtt://a:first-secret@{broker.address}", "r-a")
        for guess in ("r-a", there.client_id):
            MqttLink(f"mqtt://b:other-secret@{broker.address}", guess).close()
            other = parse_mqtt_address(f"mqtt://b:other-secret@{broker.address}")
            connect(ClientSetup(other, guess)).client.disconnect()
        assert receive_all(there, 1.0) == []  # the link was never down
        there.close()
