"""An authority and its office where devices enrol. Nothing of cryptography at import: the fixtures
are for all, and some tests do without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from coordinator.access.authority import Authority
    from coordinator.access.enrolment_server import Enrolment


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    from coordinator.access.authority import Authority

    made = Authority(tmp_path_factory.mktemp("pki"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def office(authority: Authority) -> Iterator[Enrolment]:
    from coordinator.access.enrolment_server import Enrolment

    made = Enrolment(authority, "127.0.0.1", 0, lambda: "8883")
    yield made
    made.close()
