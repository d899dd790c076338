"""Who may ask for metrics, and what addresses are refused."""

from __future__ import annotations

import socket
import ssl
import urllib.request
from pathlib import Path

import pytest

from coordinator.authority import Authority
from coordinator.config import Metrics
from coordinator.live import Observer
from coordinator.metrics import Meter, serving
from federated.errors import ConfigError, LinkError, UsageError


@pytest.fixture
def meter(tmp_path: Path) -> Meter:
    return Meter(Observer(tmp_path, "r", 3))


def test_beyond_loopback_nobody_is_answered_without_a_certificate(meter: Meter) -> None:
    with pytest.raises(ConfigError, match=r"opens the metrics to the network: name metrics.certificate"), serving(meter, Metrics(listen="0.0.0.0:0")):
        pass


@pytest.mark.parametrize("listen", ["", "here", "127.0.0.1:x", "127.0.0.1:99999", "no.such.host.invalid:1"])
def test_addresses_that_are_none_are_said(meter: Meter, listen: str) -> None:
    with pytest.raises(UsageError, match=r"metrics.listen: expected"), serving(meter, Metrics(listen=listen)):
        pass


def test_a_port_that_is_taken_is_said(meter: Meter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LinkError, match="choose another port by --metrics"), serving(meter, Metrics(listen=listen)):
            pass


def test_files_that_are_missing_or_do_not_fit_are_said(meter: Meter, tmp_path: Path) -> None:
    there = tmp_path / "there.pem"
    there.write_text("nothing")
    wanted = Metrics(listen="127.0.0.1:0", certificate=str(there), key=str(there), ca=str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="missing does not exist"), serving(meter, wanted):
        pass
    wanted = Metrics(listen="127.0.0.1:0", certificate=str(there), key=str(there), ca=str(there))
    with pytest.raises(ConfigError, match="do not go together"), serving(meter, wanted):
        pass


def test_with_an_authority_only_who_shows_its_certificate_is_answered(meter: Meter, tmp_path: Path) -> None:
    made = Authority(tmp_path / "pki")
    made.close()
    wanted = Metrics(listen="127.0.0.1:0", certificate=str(made.server), key=str(made.server), ca=str(made.ca))
    stranger = ssl.create_default_context(cafile=str(made.ca))
    known = ssl.create_default_context(cafile=str(made.ca))
    known.load_cert_chain(made.coordinator)
    with serving(meter, wanted) as place:
        assert place.startswith("https://127.0.0.1:")
        with urllib.request.urlopen(place, context=known, timeout=10) as answer:
            assert b"espalier_rounds_total 0.0" in answer.read()
        with pytest.raises(OSError), urllib.request.urlopen(place, context=stranger, timeout=10):  # noqa: PT011  # how it breaks off is OpenSSL's matter
            pass


def test_a_client_that_says_nothing_keeps_neither_others_from_being_answered_nor_the_coordinator_from_ending(meter: Meter, tmp_path: Path) -> None:
    made = Authority(tmp_path / "pki")
    made.close()
    wanted = Metrics(listen="127.0.0.1:0", certificate=str(made.server), key=str(made.server), ca=str(made.ca))
    known = ssl.create_default_context(cafile=str(made.ca))
    known.load_cert_chain(made.coordinator)
    with serving(meter, wanted) as place:
        silent = socket.create_connection(("127.0.0.1", int(place.rpartition(":")[2].partition("/")[0])))
        with urllib.request.urlopen(place, context=known, timeout=5) as answer:
            assert answer.status == 200
    silent.close()
