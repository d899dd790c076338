"""Where an agent listens, and the secret that askers must know."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.access.http_address import Address, listening, token_of
from federated.errors import ConfigError, UsageError


def test_addresses_are_of_this_machine_unless_said_otherwise() -> None:
    assert listening("8080") == Address("127.0.0.1", 8080, True)
    assert listening(":8080") == Address("127.0.0.1", 8080, True)
    assert listening("[::1]:80") == Address("::1", 80, True)
    assert not listening("0.0.0.0:80").local
    for wrong in ("127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "nowhere.invalid:80"):
        with pytest.raises(UsageError, match="--serve: expected"):
            listening(wrong)


def test_a_secret_is_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a-secret-of-enough-letters\n")
    assert token_of(path) == "a-secret-of-enough-letters"
    for wrong in ("short", "with spaces in between them", ""):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match="expected a secret"):
            token_of(path)
    with pytest.raises(ConfigError, match="No such file"):
        token_of(tmp_path / "none")
