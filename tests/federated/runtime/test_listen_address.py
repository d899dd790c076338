"""Parsing of listen addresses."""

from __future__ import annotations

import pytest

from federated.errors import UsageError
from federated.runtime.listen_address import ListenAddress, parse_listen_address


def parse(text: str) -> ListenAddress:
    return parse_listen_address(text, "--serve", "127.0.0.1:8080")


def test_an_address_without_a_host_is_local() -> None:
    assert parse("8080") == ListenAddress("127.0.0.1", 8080, True)
    assert parse(":8080") == ListenAddress("127.0.0.1", 8080, True)
    assert parse("[::1]:80") == ListenAddress("::1", 80, True)
    assert not parse("0.0.0.0:80").local


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "nowhere.invalid:80"]
)
def test_an_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="--serve: expected"):
        parse(text)
