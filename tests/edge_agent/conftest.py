"""A device with a token for `tests.support.office`. Imports no cryptography: other tests do not
need it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from coordinator.access.authority import Authority
    from coordinator.access.enrolment_server import EnrolmentServer
    from federated.wire.enrolment_token import Token


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a device's state, empty."""
    monkeypatch.setenv("ESPALIER_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def token(authority: Authority, office: EnrolmentServer, request: pytest.FixtureRequest) -> Token:
    return authority.invite(f"a{abs(hash(request.node.name))}", "localhost", office.port, 60)
