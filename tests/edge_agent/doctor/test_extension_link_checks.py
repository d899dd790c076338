"""Checks over links of other schemes than MQTT's."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from federated.errors import ConfigError, Unknown
from tests.support.doctor_checks import check_broker, coordinating, states
from tests.support.tcp_link import TcpHub

SCHEME = "tests.support.tcp_link:open_tcp_link"


def test_a_link_of_another_package_passes_every_check(tmp_path: Path) -> None:
    with closing(TcpHub()) as hub:
        address = hub.address.replace("toytcp", SCHEME)
        with coordinating(address, tmp_path):
            found = check_broker(address)
    assert states(found) == dict.fromkeys(
        ("link", "run", "rights", "packets", "coordinator", "skew"), "ok"
    )


def test_a_link_without_a_run_warns() -> None:
    with closing(TcpHub()) as hub:
        found = check_broker(hub.address.replace("toytcp", SCHEME))
    assert states(found) == {"link": "ok", "run": "warn"}


def test_a_link_that_cannot_connect_fails_like_join() -> None:
    found = check_broker(f"{SCHEME}://127.0.0.1:1")
    assert (states(found), found["link"].exit) == ({"link": "fail"}, 5)


@pytest.mark.parametrize(
    ("scheme", "error"), [("http", Unknown), ("missing_module:link", ConfigError)]
)
def test_a_scheme_is_refused_as_by_join(scheme: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=scheme):
        check_broker(f"{scheme}://host")
