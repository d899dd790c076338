"""An authority, its office where devices enrol, and a device that has a token. Nothing of cryptography at import: tests beside do without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from coordinator.authority import Authority
    from coordinator.enrolment import Enrolment
    from federated.wire.enrolment import Token


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    from coordinator.authority import Authority

    made = Authority(tmp_path_factory.mktemp("pki"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def office(authority: Authority) -> Iterator[Enrolment]:
    from coordinator.enrolment import Enrolment

    made = Enrolment(authority, "127.0.0.1", 0, lambda: "8883")
    yield made
    made.close()


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state of a device."""
    monkeypatch.setenv("ESPALIER_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def token(authority: Authority, office: Enrolment, request: pytest.FixtureRequest) -> Token:
    return authority.invite(f"a{abs(hash(request.node.name))}", "localhost", office.port, 60)
