"""Errors of a gateway before it joins a run."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from coordinator.gateway.gateway import GatewayRequest, run_gateway
from coordinator.settings.service_tables import Broker
from federated.errors import LinkError


def test_a_port_in_use_names_the_flag_of_the_sites_broker(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        site = Broker(port=server.getsockname()[1])
        request = GatewayRequest(
            "site", "127.0.0.1:1", site, None, 1, 1.0, (), tmp_path, spool_limit=1
        )
        with pytest.raises(LinkError) as caught:
            run_gateway(request, threading.Event(), print)
    assert "is in use" in caught.value.on_command_line
    assert "--site-broker 127.0.0.1:" in caught.value.on_command_line
