"""Fixtures: an authority and its enrolment server.

cryptography is imported lazily, because some tests that load this file run without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from coordinator.access.certificate_authority import Authority
    from coordinator.access.enrolment_server import EnrolmentServer


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    from coordinator.access.certificate_authority import Authority

    made = Authority(tmp_path_factory.mktemp("pki"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def enrolment(authority: Authority) -> Iterator[EnrolmentServer]:
    from coordinator.access.enrolment_server import EnrolmentServer

    made = EnrolmentServer(authority, ("127.0.0.1", 0), "8883")
    yield made
    made.close()
