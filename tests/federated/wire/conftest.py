"""Real brokers: each supported kind, and mosquitto with a low packet limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from coordinator.broker.local_broker import Broker
from tests.support.brokers import BOTH


@pytest.fixture(params=BOTH)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with brokers.start(
        port=0, kind=request.param, directory=tmp_path, max_packet=300_000
    ) as started:
        yield started


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Broker]:
    if brokers.find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    with brokers.start(port=0, kind="mosquitto", directory=tmp_path, max_packet=100_000) as started:
        yield started
