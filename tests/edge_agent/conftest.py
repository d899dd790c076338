"""A device with a token for `tests.support.enrolment_server`. Imports no cryptography, which
other tests do not need.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from coordinator.access.certificate_authority import Authority
    from coordinator.access.enrolment_server import EnrolmentServer
    from federated.wire.enrolment_token import Token


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a device's state, empty."""
    monkeypatch.setenv("ESPALIER_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def token(
    authority: Authority, enrolment: EnrolmentServer, request: pytest.FixtureRequest
) -> Token:
    return authority.invite(f"a{abs(hash(request.node.name))}", "localhost", enrolment.port, 60)
