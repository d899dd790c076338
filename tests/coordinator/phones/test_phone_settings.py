"""Settings of the phones' page that do not fit together are rejected before anything starts."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from coordinator.phones import phone_server_process
from coordinator.phones.phone_server_process import serve_phones
from coordinator.settings.config import Config
from coordinator.settings.service_tables import Broker, Phones
from federated.errors import ConfigError


@pytest.mark.parametrize(
    ("phones", "origin", "words"),
    [
        (Phones(listen="127.0.0.1:0", tls=True), "http://192.0.2.1:1", "cannot transfer at http"),
        (Phones(listen="127.0.0.1:0", url="https://h"), "http://h", "cannot transfer at http"),
        (Phones(listen="127.0.0.1:0", tls=True), "https://192.0.2.1:1", ""),
        (Phones(listen="127.0.0.1:0", tls=True), "http://127.0.0.1:1", ""),
        (Phones(listen="127.0.0.1:0"), "http://192.0.2.1:1", ""),
    ],
)
def test_a_page_with_https_needs_transfers_with_https(
    phones: Phones, origin: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phone_server_process, "find_files", lambda: tmp_path)  # no page was built
    config = Config(phones=phones, broker=Broker(pki=str(tmp_path / "pki")))
    refused = pytest.raises(ConfigError, match=words) if words else nullcontext()
    with refused, serve_phones(config, "mqtt://127.0.0.1", print, origin):
        pass


@pytest.mark.parametrize(
    ("phones", "words"),
    [
        (Phones(tls=True), "which is not served"),
        (Phones(certificate="cert.pem", key="key.pem"), "which is not served"),
        (Phones(url="https://h"), "which is not served"),
        (Phones(listen="127.0.0.1:0", url="https://h#x"), "phones.url: expected http"),
        (
            Phones(listen="127.0.0.1:0", tls=True, certificate="cert.pem", key="key.pem"),
            "cannot be combined",
        ),
    ],
)
def test_settings_that_contradict_are_named(phones: Phones, words: str) -> None:
    with (
        pytest.raises(ConfigError, match=words),
        serve_phones(Config(phones=phones), "mqtt://127.0.0.1", print),
    ):
        pass
