"""The server of HTTP transfers starts only where nobody can read along."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest

from coordinator.http_transfers.configured_transfers import open_transfers
from coordinator.http_transfers.transfer_server_process import serve_transfers
from coordinator.settings.config import load
from federated.errors import ConfigError, UsageError
from tests.support.waiting import eventually


def refuse(settings: Mapping[str, Any], folder: Path) -> str:
    """Return why a configuration is refused."""
    config = load(None, {}, list(settings.items()))
    with (
        pytest.raises((ConfigError, UsageError)) as caught,
        open_transfers(config, folder / "spool", print),
    ):
        pass
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"http.listen": "0.0.0.0:0"}, "would transfer without TLS: name http.certificate"),
        ({"http.listen": "0.0.0.0:0", "http.url": "http://h"}, "would transfer without TLS"),
        (
            {"http.listen": "127.0.0.1:0", "broker.tls": True, "broker.ca": "ca.pem"},
            "name http.certificate and http.key of the same authority",
        ),
        ({"http.url": "https://h"}, "expected http.listen or http.store, too"),
        ({"http.listen": "8602x"}, "http.listen: expected HOST:PORT"),
        ({"http.listen": "127.0.0.1:0", "http.url": "ftp://h"}, "http.url: expected http"),
        ({"http.listen": "127.0.0.1:0", "http.url": "https://u@h"}, "http.url: expected http"),
        ({"http.listen": "127.0.0.1:0", "http.url": "https://h?x"}, "http.url: expected http"),
        ({"http.listen": "127.0.0.1:0", "http.key": "k.pem"}, "HTTPS needs both http.certificate"),
        ({"http.listen": "127.0.0.1:0", "broker.url": "mqtts://h"}, "accept only https://"),
    ],
)
def test_a_wrong_configuration_is_refused(
    settings: dict[str, Any], why: str, tmp_path: Path
) -> None:
    assert why in refuse(settings, tmp_path)


@pytest.mark.parametrize("settings", [{}, {"broker.url": "mqtt://h"}])
def test_without_tls_the_server_needs_none(settings: dict[str, Any], tmp_path: Path) -> None:
    config = load(None, {}, [("http.listen", "127.0.0.1:0"), *settings.items()])
    with open_transfers(config, tmp_path / "spool", print) as urls:
        assert urls is not None
        assert urls.origin.startswith("http://127.0.0.1:")


def test_the_process_is_started_again_with_the_same_addresses(tmp_path: Path) -> None:
    config = load(None, {}, [("http.listen", "127.0.0.1:0")])
    lines: list[str] = []
    (part := tmp_path / "now" / "x.update.part").parent.mkdir()
    part.touch()

    def ask(url: str) -> int:
        place, _, path = url.removeprefix("http://").partition("/")
        try:
            with closing(HTTPConnection(place, timeout=5)) as link:
                link.request("HEAD", f"/{path}")
                return link.getresponse().status
        except OSError:
            return 0

    with serve_transfers(config, tmp_path, lines.append) as urls:
        url = urls.name_update(part.relative_to(tmp_path), 100)  # type: ignore[arg-type]
        assert eventually(lambda: ask(url)) == 204
        (child,) = find_children()
        os.kill(child, signal.SIGKILL)
        eventually(lambda: find_children() not in ([], [child]))
        assert eventually(lambda: ask(url)) == 204
        assert lines == [f"agents transfer weights and updates over {urls.base}"]


def find_children() -> list[int]:
    """Return the processes of the server that this one started."""
    return [
        one.pid
        for one in psutil.Process().children()
        if one.status() != psutil.STATUS_ZOMBIE
        and "coordinator.http_transfers.transfer_server_process" in " ".join(one.cmdline())
    ]
