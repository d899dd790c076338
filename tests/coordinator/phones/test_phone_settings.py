"""Settings of the phones' page that do not fit together are rejected before anything starts."""

from __future__ import annotations

import pytest

from coordinator.phones.phone_server_process import serve_phones
from coordinator.settings.config import Config
from coordinator.settings.service_tables import Phones
from federated.errors import ConfigError


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
