"""A store is used only with settings that fit, and with credentials that are not among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("botocore")

from benchmarks.faults.parts.object_store import CREDENTIALS
from coordinator.http_transfers.configured_transfers import open_transfers
from coordinator.http_transfers.store_transfers import parse_bucket
from coordinator.settings.config import load
from coordinator.settings.service_tables import Http
from federated.errors import ConfigError, EspalierError, LinkError

LOCAL = {"http.store": "s3://fleet", "http.endpoint": "http://127.0.0.1:1"}


def refuse(settings: dict[str, Any], folder: Path, kind: type[EspalierError] = ConfigError) -> str:
    config = load(None, {}, [("name", "r"), *settings.items()])
    with pytest.raises(kind) as caught, open_transfers(config, folder, print):
        pass
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"http.store": "fleet"}, "expected s3://BUCKET"),
        ({"http.store": "s3://Fleet"}, "expected s3://BUCKET"),
        ({"http.store": "s3://fleet?x"}, "expected s3://BUCKET"),
        ({**LOCAL, "http.endpoint": "127.0.0.1:1"}, "http.endpoint: expected http"),
        ({**LOCAL, "http.endpoint": "https://key@host"}, "http.endpoint: expected http"),
        ({**LOCAL, "http.url": "ftp://host"}, "http.url: expected http"),
        ({**LOCAL, "http.endpoint": "http://192.0.2.1"}, "devices would transfer without TLS"),
        ({**LOCAL, "http.endpoint": "HTTP://192.0.2.1"}, "devices would transfer without TLS"),
        ({**LOCAL, "http.url": "http://192.0.2.1"}, "devices would transfer without TLS"),
        ({**LOCAL, "http.listen": "127.0.0.1:0"}, "run without http.listen"),
        ({**LOCAL, "http.key": "k.pem"}, "run without http.key"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], why: str, tmp_path: Path) -> None:
    assert why in refuse(settings, tmp_path)


def test_missing_credentials_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "no credentials: set AWS_ACCESS_KEY_ID" in refuse(LOCAL, tmp_path)


def test_a_store_that_cannot_be_reached_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may return, so the exit code does not tell a service manager to give up."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    assert "http://127.0.0.1:1" in refuse(LOCAL, tmp_path, LinkError)
    assert LinkError.exit_code != ConfigError.exit_code


@pytest.mark.parametrize(
    ("store", "name", "prefix"),
    [
        ("s3://fleet", "fleet", "r/"),
        ("s3://fleet/", "fleet", "r/"),
        ("s3://fleet.de/a//b/", "fleet.de", "a/b/r/"),
    ],
)
def test_objects_of_a_run_are_below_its_name(store: str, name: str, prefix: str) -> None:
    bucket = parse_bucket(Http(store=store), "r")
    assert (bucket.name, bucket.prefix) == (name, prefix)
