"""The agent's state folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.device import state_folder
from federated.errors import StoreError


def test_folder_is_configured_or_conventional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("ESPALIER_STATE", raising=False)
    assert state_folder.locate_state() == Path("/home/u/.local/state/espalier")
    monkeypatch.setenv("XDG_STATE_HOME", "/var/lib/x")
    assert state_folder.locate_state() == Path("/var/lib/x/espalier")
    monkeypatch.setenv("ESPALIER_STATE", "/data/here")
    assert state_folder.locate_state() == Path("/data/here")


def test_user_without_home_gets_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("ESPALIER_STATE", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(StoreError, match="ESPALIER_STATE"):
        state_folder.locate_state()
