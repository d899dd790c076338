"""What ends by itself, made again in time: the list of revoked certificates, whose end would shut
every device out.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coordinator.access import authority as authorities
from coordinator.access import gate as gates
from coordinator.access.authority import LIST_LIFE, Authority
from coordinator.access.certificates import read_list
from coordinator.access.gate import TEND, Gate, Keeper, open_gate
from coordinator.broker.local import find_mosquitto
from coordinator.settings.services import Broker
from federated.errors import LinkError
from federated.wire import tls
from federated.wire.address import parse_address
from federated.wire.links.mqtt import MqttLink

DAY = 86400.0
needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")


class Office:
    """Where devices enrol, as far as a keeper knows it."""

    reloaded = 0

    def reload(self) -> None:
        self.reloaded += 1


def end_of(authority: Authority) -> datetime:
    end = read_list(authority.crl).next_update_utc
    assert end is not None
    return end


def test_a_list_is_signed_anew_when_less_than_half_of_its_life_is_left(tmp_path: Path) -> None:
    """181 days with the one that it is backdated: half of them are over 89.5 days from now."""
    authority = Authority(tmp_path / "pki")
    now, end = datetime.now(UTC), end_of(authority)
    assert not authority.tend(now + timedelta(days=89))
    assert end_of(authority) == end
    assert authority.tend(now + timedelta(days=90))
    assert end_of(authority) - end > timedelta(days=89)
    assert not authority.tend(now + timedelta(days=90))
    authority.close()


def test_a_keeper_looks_every_hour_and_has_others_read_the_new_list(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By a clock driven by hand; of a broker that is not ours a person is told, who must bring it
    the list.
    """
    Authority(tmp_path / "pki").close()
    authority, office = Authority(tmp_path / "pki"), Office()
    end, clock = end_of(authority), [time.time()]
    keeper = Keeper(authority, Gate("h"), None, office, lambda: clock[0])  # type: ignore[arg-type]
    for step, renewed in ((0, False), (89 * DAY, False), (TEND / 2, False), (1.5 * DAY, True)):
        clock[0] += step
        keeper.look()
        assert (end_of(authority) > end) is renewed
    assert (office.reloaded, caplog.records) == (0, [])
    keeper.look()
    keeper.look()
    assert office.reloaded == 1
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, gates.HAND_OVER)
    ]
    authority.close()


def test_what_could_not_be_made_again_is_tried_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, clock, tries = Authority(tmp_path / "pki"), [time.time()], list[datetime]()
    keeper = Keeper(authority, Gate("h"), None, Office(), lambda: clock[0])  # type: ignore[arg-type]

    def tend(now: datetime) -> bool:
        tries.append(now)
        if len(tries) == 1:
            raise OSError("no room")
        return False

    monkeypatch.setattr(authority, "tend", tend)
    clock[0] += TEND + 1
    with pytest.raises(OSError, match="no room"):
        keeper.look()
    keeper.look()
    keeper.look()
    assert len(tries) == 2
    authority.close()


def test_a_list_that_is_new_at_the_start_is_told_for_a_broker_of_ones_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "pki")
    assert authority.renewed
    Keeper(authority, Gate("h"), None, Office())  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records] == [gates.HAND_OVER]
    authority.close()


@pytest.mark.broker
@needs_mosquitto
def test_a_broker_whose_list_ended_says_so_and_lets_devices_in_again_once_it_is_signed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorities, "LIST_LIFE", timedelta(seconds=4))
    wanted = Broker(port=0, tls=True, enrol=0, pki=str(tmp_path / "pki"))
    with open_gate(wanted, tmp_path, lambda text: None) as gate:
        address = parse_address(gate.address)
        until = time.monotonic() + 60
        while not (why := tls.refusal(address)) and time.monotonic() < until:
            time.sleep(0.2)
        assert "the broker's own list of revoked ones has" in why
        with pytest.raises(LinkError, match="the coordinator makes the list anew when it starts"):
            MqttLink(address, "a", timeout=3)
        monkeypatch.setattr(authorities, "LIST_LIFE", LIST_LIFE)
        monkeypatch.setattr(gates, "TEND", 0.0)
        until = time.monotonic() + 60
        while tls.refusal(address) and time.monotonic() < until:
            time.sleep(0.2)
        MqttLink(address, "a").close()
