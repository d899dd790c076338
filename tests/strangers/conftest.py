"""A mosquitto with the shipped files, and a coordinator's link that receives everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.access.certificate_authority import Authority
from federated.wire import topics
from federated.wire.links.mqtt import MqttLink
from tests.support.certificate_authority import TlsBroker, shipped
from tests.support.strangers import coordinator_link, receive_all


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    folder = tmp_path_factory.mktemp("strangers")
    authority = Authority(folder / "pki")
    with shipped("tls.conf", authority, folder) as tls_broker:
        coordinator_link(tls_broker).close()
        yield tls_broker
    authority.close()


@pytest.fixture
def hearing(tls_broker: TlsBroker) -> Iterator[MqttLink]:
    """Yield the coordinator's link, which may receive everything."""
    link = coordinator_link(tls_broker)
    link.subscribe(topics.all_topics())
    receive_all(link, 0.2)  # retained messages
    yield link
    link.close()
