"""The token that HTTP clients must send."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.infer.infer_command import load_client_token
from federated.errors import ConfigError


def test_a_token_is_long_enough_and_has_no_spaces(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a-secret-of-enough-letters\n")
    assert load_client_token(path) == "a-secret-of-enough-letters"
    for wrong in ("short", "with spaces in between them", ""):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match="expected a token"):
            load_client_token(path)
    with pytest.raises(ConfigError, match=r"No such file.*openssl rand"):
        load_client_token(tmp_path / "none")
