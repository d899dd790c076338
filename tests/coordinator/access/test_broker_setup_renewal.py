"""Renewal of the revocation list before it expires, which would lock out every device."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coordinator.access import broker_setup
from coordinator.access import certificate_authority as authorities
from coordinator.access.broker_setup import (
    RENEWAL_CHECK,
    AuthorityWatcher,
    BrokerAccess,
    open_broker_access,
)
from coordinator.access.certificate_authority import LIST_LIFE, Authority
from coordinator.access.certificate_files import read_list
from coordinator.broker.local_broker import find_mosquitto
from coordinator.settings.service_tables import Broker
from federated.errors import LinkError
from federated.wire import tls
from federated.wire.links.mqtt import MqttLink
from federated.wire.mqtt_address import parse_mqtt_address

DAY = 86400.0
needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")


def end_of(authority: Authority) -> datetime:
    end = read_list(authority.crl).next_update_utc
    assert end is not None
    return end


def test_a_list_is_renewed_when_less_than_half_of_its_life_is_left(tmp_path: Path) -> None:
    """It lasts 181 days, as it is backdated by one: half of them have passed 89.5 days from now."""
    authority = Authority(tmp_path / "pki")
    now, end = datetime.now(UTC), end_of(authority)
    assert not authority.renew_own(now + timedelta(days=89))
    assert end_of(authority) == end
    assert authority.renew_own(now + timedelta(days=90))
    assert end_of(authority) - end > timedelta(days=89)
    assert not authority.renew_own(now + timedelta(days=90))
    authority.close()


def test_the_watcher_checks_every_hour_and_loads_the_new_list(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For an external broker it logs that its operator must install the list."""
    Authority(tmp_path / "pki").close()
    authority = Authority(tmp_path / "pki")
    end, clock = end_of(authority), [time.time()]
    watcher = AuthorityWatcher(authority, BrokerAccess("h"), None, lambda: clock[0])
    for step, renewed in (
        (0, False),
        (89 * DAY, False),
        (RENEWAL_CHECK / 2, False),
        (1.5 * DAY, True),
    ):
        clock[0] += step
        watcher.poll()
        assert (end_of(authority) > end) is renewed
    assert caplog.records == []
    watcher.poll()
    watcher.poll()
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, broker_setup.HAND_OVER)
    ]
    authority.close()


def test_a_failed_renewal_is_repeated_at_the_next_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, clock, tries = Authority(tmp_path / "pki"), [time.time()], list[datetime]()
    watcher = AuthorityWatcher(authority, BrokerAccess("h"), None, lambda: clock[0])

    def renew_own(now: datetime) -> bool:
        tries.append(now)
        if len(tries) == 1:
            raise OSError("no room")
        return False

    monkeypatch.setattr(authority, "renew_own", renew_own)
    clock[0] += RENEWAL_CHECK + 1
    with pytest.raises(OSError, match="no room"):
        watcher.poll()
    watcher.poll()
    watcher.poll()
    assert len(tries) == 2
    authority.close()


def test_a_list_that_is_new_at_the_start_is_logged_for_an_external_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "pki")
    assert authority.renewed
    AuthorityWatcher(authority, BrokerAccess("h"), None)
    assert [record.getMessage() for record in caplog.records] == [broker_setup.HAND_OVER]
    authority.close()


@pytest.mark.broker
@needs_mosquitto
def test_a_broker_with_an_expired_list_tells_clients_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorities, "LIST_LIFE", timedelta(seconds=4))
    wanted = Broker(port=0, tls=True, enrol=0, pki=str(tmp_path / "pki"))
    with open_broker_access(wanted, tmp_path, lambda text: None) as broker_access:
        address = parse_mqtt_address(broker_access.address)
        until = time.monotonic() + 60
        while not (why := tls.find_refusal(address)) and time.monotonic() < until:
            time.sleep(0.2)
        assert "revocation list has expired" in why
        with pytest.raises(LinkError, match="restart the coordinator, which renews the list"):
            MqttLink(address, "a", timeout=3)
        monkeypatch.setattr(authorities, "LIST_LIFE", LIST_LIFE)
        monkeypatch.setattr(broker_setup, "RENEWAL_CHECK", 0.0)
        until = time.monotonic() + 60
        while tls.find_refusal(address) and time.monotonic() < until:
            time.sleep(0.2)
        MqttLink(address, "a").close()
