"""What a run does about a broker of a user."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from coordinator.broker import external_broker_checks
from coordinator.broker import local_broker as brokers
from federated.wire.checks.broker_capability_checks import WILDCARDS, Place
from federated.wire.checks.check_result import Check
from federated.wire.link import CHUNK
from federated.wire.links.catalogue import open_link


@pytest.mark.broker
def test_a_run_adapts_its_chunks_to_a_limit_that_the_broker_does_not_state(tmp_path: Path) -> None:
    lines: list[str] = []
    with (
        brokers.start(port=0, kind="embedded", directory=tmp_path, max_packet=110_000) as broker,
        contextlib.closing(open_link(broker.address, "coordinator")) as link,
    ):
        assert link.max_chunk == CHUNK
        assert not external_broker_checks.adapt(link, broker.address, "r", lines.append)
        assert link.max_chunk < 110_000
    assert [line for line in lines if "98304 bytes accepted" in line] == lines
    assert len(lines) == 1


def test_a_run_knows_that_retained_messages_reach_no_wildcard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacking = Check(WILDCARDS, "warn", "no wildcards", "do this")

    def try_nothing(place: Place) -> list[Check]:
        return [Check("order", "ok", ""), lacking]

    monkeypatch.setattr(external_broker_checks, "try_basics", try_nothing)
    lines: list[str] = []
    with contextlib.closing(open_link("memory://any", "coordinator")) as link:
        assert external_broker_checks.adapt(link, "mqtt://broker", "r", lines.append)
        assert not external_broker_checks.adapt(link, "memory://any", "r", lines.append)
    assert lines == ["the broker at mqtt://broker:1883: no wildcards: do this"]
