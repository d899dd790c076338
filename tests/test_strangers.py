"""Nobody comes in who was not let in, and nobody speaks for another: real mosquitto with the shipped files, and the real coordinator."""

from __future__ import annotations

import ast
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from coordinator.admission import hand_over
from coordinator.authority import Authority
from coordinator.broker import start
from coordinator.fleet import Fleet
from coordinator.mosquitto import COORDINATOR, find_mosquitto, rights
from federated.errors import LinkError, Refused, UsageError
from federated.wire import envelope, messages, topics
from federated.wire.address import parse_address
from federated.wire.link import MqttLink
from federated.wire.mqtt import connect, part
from tests.support.authority import SHIPPED, Door, member, shipped

pytestmark = [pytest.mark.broker, pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")]

ROOT = Path(__file__).parents[1]
PACKAGES = ("models", "federated", "export", "edge_agent", "coordinator", "benchmarks")


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("strangers")
    authority = Authority(folder / "pki")
    with shipped("tls.conf", authority, folder) as door:
        coordinator_link(door).close()
        yield door
    authority.close()


@pytest.fixture
def hearing(door: Door) -> Iterator[MqttLink]:
    """The coordinator, which may hear everything."""
    link = coordinator_link(door)
    link.subscribe(topics.all_topics())
    heard(link, 0.2)  # what is retained
    yield link
    link.close()


def coordinator_link(door: Door) -> MqttLink:
    until = time.monotonic() + 10
    while True:
        try:
            return MqttLink(door.address(door.authority.coordinator), "coordinator-r", timeout=2)
        except LinkError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def heard(link: MqttLink, seconds: float) -> list[tuple[str, bytes]]:
    """Everything that comes until nothing does for so long."""
    return [(delivery.topic, delivery.payload) for delivery in iter(lambda: link.receive(seconds), None)]


def failing(link: MqttLink) -> str:
    """Why a link ended, once it has."""
    until = time.monotonic() + 15
    while time.monotonic() < until:
        try:
            link.receive(0.1)
        except LinkError as error:
            return str(error)
    return ""


# ---- coming in -------------------------------------------------------------------------------------------------------


def test_who_shows_no_certificate_is_told_to_enrol(door: Door) -> None:
    with pytest.raises(LinkError, match="wants a certificate: enrol this device by edge-agent join --token"):
        MqttLink(door.address(None), "a", timeout=5)


def test_a_password_is_no_certificate(door: Door) -> None:
    with pytest.raises(LinkError, match="wants a certificate"):
        MqttLink(f"mqtts://{COORDINATOR.replace('@', '%40')}:x@localhost:{door.port}?ca={door.authority.ca}", "a", timeout=5)


def test_another_authoritys_certificate_is_refused_even_of_the_coordinators_name(door: Door, tmp_path: Path) -> None:
    other = Authority(tmp_path / "pki")
    with pytest.raises(LinkError, match="of an authority that the broker does not know"):
        MqttLink(door.address(other.coordinator), "coordinator-r", timeout=5)
    other.close()


def test_who_does_not_know_the_authority_trusts_no_broker(door: Door, tmp_path: Path) -> None:
    other = Authority(tmp_path / "pki")
    with pytest.raises(LinkError, match="its certificate is not trusted"):
        MqttLink(door.address(door.authority.coordinator, ca=other.ca), "a", timeout=5)
    other.close()


def test_plain_mqtt_finds_nobody_at_the_port_of_tls(door: Door) -> None:
    with pytest.raises(LinkError, match=r"hung up|does not answer as an MQTT broker"):
        MqttLink(f"mqtt://localhost:{door.port}", "a", timeout=5)


def test_no_agent_can_be_called_as_the_coordinator_is(door: Door) -> None:
    with pytest.raises(UsageError, match="agent name"):
        door.authority.invite(COORDINATOR, "localhost", 8884, 60)


def test_who_was_revoked_may_do_nothing_any_more_and_not_come_back(door: Door, hearing: MqttLink, tmp_path: Path) -> None:
    pem = member(door.authority, "lost", tmp_path)
    link = MqttLink(door.address(pem), "r-lost")
    link.publish(topics.say("r", "lost"), b"before")
    assert heard(hearing, 1.0) == [(topics.say("r", "lost"), b"before")]
    door.authority.revoke("lost")
    hand_over(door.authority, door.files)
    door.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    link.publish(topics.say("r", "lost"), b"after")
    assert heard(hearing, 1.0) == []
    assert "this client's certificate was revoked" in failing(link)
    link.close()
    with pytest.raises(LinkError, match="this client's certificate was revoked"):
        MqttLink(door.address(pem), "r-lost", timeout=5)


# ---- speaking and hearing --------------------------------------------------------------------------------------------


def test_an_agent_speaks_on_its_own_topics_alone(door: Door, hearing: MqttLink, tmp_path: Path) -> None:
    mine, theirs = member(door.authority, "b", tmp_path), topics.say("r", "a")
    for topic in (theirs, topics.command("r", "b"), topics.run("r"), topics.everyone("r"), topics.release_card("r"), topics.upload("r", "a", "t")):
        link = MqttLink(door.address(mine), "r-b")  # a new one each time: the refusal ends it
        link.publish(topics.say("r", "b"), b"mine")
        link.publish(topic, b"not mine")
        assert "Not authorized" in failing(link)
        link.close()
    assert heard(hearing, 1.0) == [(topics.say("r", "b"), b"mine")] * 6


def test_under_mqtt_3_too_nothing_arrives_of_what_is_said_for_another(door: Door, hearing: MqttLink, tmp_path: Path) -> None:
    link = MqttLink(door.address(member(door.authority, "c", tmp_path)), "r-c", version=4)
    link.publish(topics.say("r", "a"), b"not mine")
    link.publish(topics.say("r", "c"), b"mine")
    assert heard(hearing, 1.0) == [(topics.say("r", "c"), b"mine")]
    link.close()


def every_topic(agent: str) -> dict[str, str]:
    """All that topics.py can spell, for one agent. Whether it may write each is said in `OWN`."""
    version = "0" * 12
    model, release = topics.model("r", "v", "s"), topics.release("r", version, "f")
    return {
        "status": topics.status("r", agent),
        "profile": topics.profile("r", agent),
        "serving": topics.serving("r", agent),
        "heartbeat": topics.heartbeat("r", agent),
        "say": topics.say("r", agent),
        "probe": topics.probe("r", agent),
        "upload": topics.chunk(topics.upload("r", agent, "t"), 0),
        "answer": topics.answer("r", agent, "q"),
        "ask": topics.ask("r", agent, "q"),
        "command": topics.command("r", agent),
        "everyone": topics.everyone("r"),
        "run": topics.run("r"),
        "manifest": topics.manifest(model),
        "chunk": topics.chunk(model, 0),
        "card": topics.release_card("r"),
        "released": topics.manifest(release),
        "piece": topics.chunk(release, 0),
        "another": topics.run("another"),
    }


OWN = {"status", "profile", "serving", "heartbeat", "say", "probe", "upload", "answer"}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("whose", ["mine", "theirs"])
def test_what_is_retained_is_replaced_or_taken_away_by_nobody_else(door: Door, hearing: MqttLink, tmp_path: Path, version: int, whose: str) -> None:
    name = f"retained-{version}-{whose}"
    wanted = every_topic(name if whose == "mine" else "a")
    pem = member(door.authority, name, tmp_path)
    for topic in wanted.values():
        hearing.publish(topic, b"kept", retain=True)
    assert {topic for topic, _ in heard(hearing, 0.5)} == set(wanted.values())
    for topic in wanted.values():
        link = connect(door.address(pem), f"r-{name}", version=version).client
        link.publish(topic, b"", qos=1, retain=True)
        link.publish(topic, b"mine", qos=0, retain=True)
        time.sleep(0.05)
        part(link, version)
    touched = {topic for topic, _ in heard(hearing, 0.5)}
    for topic in wanted.values():
        hearing.publish(topic, b"", retain=True)
    assert {key for key, topic in wanted.items() if topic in touched} == (OWN if whose == "mine" else set())


@pytest.mark.parametrize("whose", ["mine", "theirs"])
def test_no_last_will_is_published_for_another(door: Door, hearing: MqttLink, tmp_path: Path, whose: str) -> None:
    name = f"will-{whose}"
    wanted, pem = every_topic(name if whose == "mine" else "a"), member(door.authority, name, tmp_path)
    for topic in wanted.values():
        client = connect(door.address(pem), f"r-{name}", (topic, b"will")).client
        client.loop_stop()
        there = client.socket()
        assert there is not None
        there.close()  # without a word
    arrived = dict(heard(hearing, 1.5))
    for topic in wanted.values():
        hearing.publish(topic, b"", retain=True)
    assert {key for key, topic in wanted.items() if topic in arrived} == (OWN if whose == "mine" else set())


@pytest.mark.parametrize("pattern", ["fl/v1/r/cmd/a", "fl/v1/+/cmd/+", "fl/v1/r/agent/a/up/+/c/+", "fl/v1/#", "#", "$share/g/fl/v1/+/cmd/+"])
def test_an_agent_hears_neither_anothers_commands_nor_updates(door: Door, hearing: MqttLink, tmp_path: Path, pattern: str) -> None:
    name = f"d{abs(hash(pattern))}"
    link = MqttLink(door.address(member(door.authority, name, tmp_path)), f"r-{name}")
    link.subscribe(pattern)
    link.subscribe(topics.command("r", name))
    time.sleep(0.2)
    hearing.publish(topics.command("r", "a"), b"secret")
    hearing.publish(topics.chunk(topics.upload("r", "a", "t"), 0), b"secret")
    hearing.publish(topics.command("r", name), b"hello")
    assert set(heard(link, 1.0)) == {(topics.command("r", name), b"hello")}
    link.close()


def test_the_brokers_own_figures_are_for_the_coordinator(door: Door, hearing: MqttLink, tmp_path: Path) -> None:
    link = MqttLink(door.address(member(door.authority, "e", tmp_path)), "r-e")
    for one in (link, hearing):
        one.subscribe("$SYS/broker/version")
    assert heard(link, 1.0) == []
    assert [topic for topic, _ in heard(hearing, 1.0)] == ["$SYS/broker/version"]
    link.close()


def test_no_agent_can_throw_another_out_by_its_name(door: Door, tmp_path: Path) -> None:
    mine, theirs = member(door.authority, "f", tmp_path), member(door.authority, "g", tmp_path)
    there = MqttLink(door.address(theirs), "r-g")
    MqttLink(door.address(mine), "r-g").close()  # the id that g's link was given, as far as anyone knows
    assert heard(there, 1.0) == []
    there.close()


def test_with_passwords_too_nobody_is_thrown_out_by_another_user(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("a:first-secret\nb:other-secret\n")
    with start("127.0.0.1", 0, "mosquitto", tmp_path / "broker", tmp_path / "users") as broker:
        there = MqttLink(f"mqtt://a:first-secret@{broker.address}", "r-a")
        for guess in ("r-a", there.client_id):
            MqttLink(f"mqtt://b:other-secret@{broker.address}", guess).close()
            connect(parse_address(f"mqtt://b:other-secret@{broker.address}"), guess).client.disconnect()
        assert heard(there, 1.0) == []  # no word of a link that was down
        there.close()


# ---- the coordinator behind it ---------------------------------------------------------------------------------------


@pytest.fixture
def fleet(door: Door, tmp_path: Path) -> Iterator[Fleet]:
    link = coordinator_link(door)
    card = messages.Run("r", "fedavg", "mlp", None, (), 1, "s")
    fleet = Fleet(link, card, tmp_path / "spool")
    fleet.announce()
    fleet.turn(0.2)
    yield fleet
    link.close()


def answered(fleet: Fleet, link: MqttLink, topic: str, payload: bytes) -> list[messages.Message]:
    """What an agent hears in answer."""
    link.subscribe(topics.command("r", "h"))
    link.publish(topic, payload)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        fleet.turn(0.05)
        if (delivery := link.receive(0.05)) is not None and delivery.topic == topics.command("r", "h"):
            return [envelope.decode(delivery.payload)]
    return []


def test_an_update_of_a_round_that_is_over_is_not_awaited(door: Door, fleet: Fleet, tmp_path: Path) -> None:
    link = MqttLink(door.address(member(door.authority, "h", tmp_path)), "r-h")
    offer = messages.Offer(messages.Manifest("1-1-h", 4096, 1024, "0" * 64), "r", 1, 1, "train", "w1-d2")
    answer = answered(fleet, link, topics.say("r", "h"), envelope.encode(offer))
    assert answer == [messages.Receipt("1-1-h", False, "round 1 of attempt 1 awaits no such update")]
    link.close()
    door.authority.revoke("h")


def test_another_version_of_the_protocol_is_refused_with_a_reason(door: Door, fleet: Fleet, tmp_path: Path) -> None:
    link = MqttLink(door.address(member(door.authority, "h", tmp_path)), "r-h")
    other = msgpack.packb({"v": envelope.PROTOCOL + 1, "kind": "status", "body": {}})
    answer = answered(fleet, link, topics.status("r", "h"), other)
    assert len(answer) == 1
    assert isinstance(answer[0], messages.Refusal)
    assert f"the peer speaks protocol {envelope.PROTOCOL + 1}, this side {envelope.PROTOCOL}" in answer[0].reason
    link.close()
    door.authority.revoke("h")


def test_a_request_for_another_name_than_the_tokens_is_refused(door: Door) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec

    from edge_agent.enrolment import request

    token = door.authority.invite("i", "localhost", 8884, 60)
    with pytest.raises(Refused, match="this token is for 'i', not for 'a'"):
        door.authority.enrol(token.secret, request("a", ec.generate_private_key(ec.SECP256R1())))


# ---- what is shipped -------------------------------------------------------------------------------------------------


def test_the_shipped_rights_are_those_of_a_broker_that_is_started_here() -> None:
    assert (SHIPPED / "rights.acl").read_text() == rights(COORDINATOR)


def test_nothing_that_could_run_what_a_stranger_sent_is_called_anywhere() -> None:
    """Nothing unpickles, compiles or evaluates; a device runs only code that was installed there."""
    found = []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.split(".")[0] for alias in node.names} | {(getattr(node, "module", "") or "").split(".")[0]}
                found += [where] if names & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"} else []
            elif isinstance(node, ast.Call):
                found += [where] if dangerous(node) else []
    assert found == []


def dangerous(call: ast.Call) -> bool:
    said = {keyword.arg: getattr(keyword.value, "value", None) for keyword in call.keywords}
    match call.func:
        case ast.Name(id="eval" | "exec" | "compile" | "__import__"):
            return True
        case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
            return said.get("weights_only") is not True
        case ast.Attribute(value=ast.Name(id="np" | "numpy"), attr="load"):
            return bool(said.get("allow_pickle"))
    return bool(said.get("shell"))
