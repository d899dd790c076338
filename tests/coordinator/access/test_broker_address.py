"""The address of a run's broker, with the coordinator's certificate, for other programs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from coordinator.access.broker_address import add_certificate, find_broker
from coordinator.access.certificate_authority import Authority
from coordinator.settings.service_tables import Broker
from federated.errors import ConfigError
from federated.wire.mqtt_address import parse_mqtt_address


def test_commands_use_the_coordinators_certificate_for_a_broker_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPALIER_BROKER__PKI", str(tmp_path / "pki"))
    assert add_certificate("mqtts://h") == "mqtts://h"  # no authority here
    Authority(tmp_path / "pki").close()
    assert parse_mqtt_address(add_certificate("mqtts://h")).cert == str(
        tmp_path / "pki" / "coordinator.pem"
    )
    for other in ("h", "mqtts://me:x@h", "mqtts://h?cert=mine.pem"):
        assert add_certificate(other) == other


def test_the_address_of_a_runs_broker_follows_from_its_settings(tmp_path: Path) -> None:
    assert find_broker(Broker(url="mqtt://me:secret@h")) == "mqtt://me:secret@h"
    assert find_broker(Broker(listen="0.0.0.0")) == "mqtt://127.0.0.1:1883"
    assert find_broker(Broker(listen="::1", port=99)) == "mqtt://[::1]:99"
    pki = tmp_path / "pki"
    Authority(pki).close()
    own = parse_mqtt_address(find_broker(Broker(tls=True, pki=str(pki))))
    assert (own.port, own.cert) == (8883, str(pki / "coordinator.pem"))
    with pytest.raises(ConfigError, match="requires a password: give its address"):
        find_broker(Broker(passwords="file"))
    with pytest.raises(ConfigError, match="has a random port"):
        find_broker(Broker(port=0))
    outside = Broker(tls=True, ca="ca.pem", pki=str(pki))
    for unused in (outside, msgspec.structs.replace(outside, pki=str(tmp_path))):
        with pytest.raises(ConfigError, match="never started"):
            find_broker(unused)
    assert not (tmp_path / "registry.sqlite").exists()
