"""The scheme of an address selects the link, and other packages can add schemes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

from federated.errors import ConfigError, LinkError, Unknown, UsageError
from federated.wire.link import Delivery, Link
from federated.wire.links.catalogue import LINKS, open_link
from federated.wire.links.mqtt import MqttLink
from tests.support.memory_federation import Member, digits, federate
from tests.support.plugins import install
from tests.support.tcp_link import TcpHub

TINY = {
    "method.widths": [0.5],
    "method.depths": [1],
    "train.epochs": 1,
    "train.steps": 20,
}


def members() -> list[Member]:
    return [Member(f"a{i}", digits(i, 2)) for i in range(2)]


def received(link: Link) -> Delivery:
    delivery = link.receive(5)
    assert delivery is not None
    return delivery


@pytest.mark.parametrize("address", ["localhost:1", "mqtt://localhost:1", "mqtts://localhost:1"])
def test_mqtt_is_the_default_scheme(address: str) -> None:
    with pytest.raises(
        LinkError, match=r"cannot connect to the broker at mqtts?://localhost:1 .*refused"
    ):
        open_link(address, "a")
    assert LINKS["mqtt"] is LINKS["mqtts"] is MqttLink


def test_links_of_one_memory_address_share_a_broker() -> None:
    with (
        closing(open_link("memory://one", "a", ("left", b"a"))) as a,
        closing(open_link("memory://one", "b")) as b,
        closing(open_link("memory://other", "c")) as c,
    ):
        b.subscribe("#")
        c.subscribe("#")
        a.publish("x", b"1", retain=True)
        assert received(b) == Delivery("x", b"1")
        open_link("memory://one", "a").close()  # takes the place of the first, whose will is told
        assert received(b) == Delivery("left", b"a")
        assert c.backlog == 0


def test_a_memory_broker_without_links_is_forgotten() -> None:
    with closing(open_link("memory://brief", "a")) as link:
        link.publish("x", b"1", retain=True)
    del link
    with closing(open_link("memory://brief", "b")) as link:
        link.subscribe("x")
        assert link.receive(0) is None


def test_a_memory_address_needs_a_name() -> None:
    with pytest.raises(UsageError, match="expected a name, as in memory"):
        open_link("memory://", "a")


def test_an_unknown_scheme_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(
        Unknown,
        match=r"'mqqt'; did you mean mqtt.* name .* module:function$",
    ):
        open_link("mqqt://localhost", "a")


def refuse(address: str, client_id: str, will: object) -> None:
    raise ConnectionRefusedError("nobody listens")


def open_nothing(address: str, client_id: str, will: object) -> None:
    return None


HERE = "tests.federated.wire.links.test_catalogue"


@pytest.mark.parametrize(
    ("address", "error", "match"),
    [
        ("tests.support.tcp_link:open_tcp_link://host:port", ConfigError, "ValueError"),
        ("tests.support.tcp_link:open_tcp_link://127.0.0.1:1", LinkError, "no hub"),
        ("math:sqrt://host", ConfigError, "math:sqrt.*takes"),
        (f"{HERE}:refuse://host", LinkError, "cannot connect.*nobody listens"),
        (f"{HERE}:open_nothing://host", ConfigError, "NoneType without backlog, .*publish.*Link"),
    ],
)
def test_whatever_an_opener_of_another_package_raises_is_an_error_of_the_project(
    address: str, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        open_link(address, "a")


@pytest.mark.slow
def test_a_run_gives_the_same_result_over_the_link_of_another_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {"espalier.links": {"toytcp": "tests.support.tcp_link:open_tcp_link"}}
    install(tmp_path, "toy-links", points)
    monkeypatch.syspath_prepend(str(tmp_path))
    with closing(TcpHub()) as hub:
        over_tcp = federate(tmp_path / "tcp", members(), TINY, broker=hub.address)
    in_memory = federate(tmp_path / "memory", members(), TINY, broker="memory://toy")
    assert sorted(hub.clients) == ["a0", "a1", "coordinator"]
    assert over_tcp.result.scores[-1].accuracy > 0.2  # a guess is right one time in ten
    learned, expected = over_tcp.result.state.tensors, in_memory.result.state.tensors
    assert learned.keys() == expected.keys()
    assert all(torch.equal(learned[home], expected[home]) for home in expected)


def connect_without_will(address: str, client_id: str) -> None:
    raise AssertionError("not called")


def test_an_opener_with_other_parameters_is_an_error_that_names_both() -> None:
    with pytest.raises(
        ConfigError, match=r"takes \(address, client_id\), expected \(address, client_id, will\)"
    ):
        open_link(f"{__name__}:connect_without_will://localhost", "a")
