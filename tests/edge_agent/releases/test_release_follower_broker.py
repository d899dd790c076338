"""An agent follows releases over a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.releases.assigned_release import Subscription
from edge_agent.releases.release_follower import Follower, open_follower_link
from export.broker_publishing import announce, describe_version, publish
from federated.wire import topics
from federated.wire.links.catalogue import open_link
from federated.wire.release_messages import Release, Serving
from tests.support.handmade_releases import toy


@pytest.mark.broker
def test_report_of_disconnected_agent_is_removed(broker: str, tmp_path: Path) -> None:
    folder = toy(tmp_path / "release")
    coordinator = open_link(broker, "coordinator")
    publish(coordinator, "spring", folder, {})
    announce(coordinator, Release("spring", describe_version(folder, "spring", {"pi": "w1-d1"})))
    coordinator.subscribe(topics.serving("spring", "pi"))
    link = open_follower_link(broker, "spring", "pi")
    f = Follower(link, Subscription("spring", "pi", None, tmp_path / "store"))
    arrived = f.turn(20)
    assert arrived is not None
    f.report(
        Serving("pi", "s1", arrived.version, "w1-d1", "fp32", "CPUExecutionProvider", 0.001, 0.002)
    )
    heard = coordinator.receive(10)
    assert heard is not None
    assert heard.payload
    link._client.socket().close()  # type: ignore[union-attr]  # no goodbye
    heard = coordinator.receive(20)
    assert heard is not None
    assert (heard.topic, heard.payload) == (topics.serving("spring", "pi"), b"")
    link.close()
    coordinator.close()
