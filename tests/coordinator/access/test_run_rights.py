"""Devices and groups take part only in the runs that they were granted, at the coordinator and at
mosquitto.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner, Result

from coordinator import audit_log
from coordinator.access.broker_setup import AuthorityWatcher, BrokerAccess
from coordinator.access.certificate_authority import Authority
from coordinator.access.configured_authority import read_excluded
from coordinator.access.run_rights import (
    Subject,
    add_run,
    list_excluded,
    list_exclusions,
    list_limits,
    set_right,
)
from coordinator.broker import local_broker as brokers
from coordinator.broker.local_broker import ACL_FILE
from coordinator.cli.main import main
from coordinator.fleet.message_loop import MessageLoop
from coordinator.views.agent_table import render_agents
from federated.errors import LinkError
from federated.wire import envelope, messages, topics
from federated.wire.link import Link
from federated.wire.links.mqtt import MqttLink
from federated.wire.mqtt_address import MqttAddress, parse_mqtt_address
from tests.support.brokers import needs_mosquitto
from tests.support.certificate_authority import member, shipped
from tests.support.waiting import eventually

PI, PAD, EU = Subject("agent", "pi"), Subject("agent", "pad"), Subject("group", "eu")


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Authority]:
    with closing(Authority(tmp_path / "pki")) as made:
        yield made


def command(folder: Path, *words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [*words, "--pki", str(folder / "pki")])
    assert result.exit_code == code, result.output
    return result


def change(
    authority: Authority, subject: Subject, run: str | None, *, withdraw: bool = False
) -> None:
    with authority.registry.transaction():
        set_right(authority.registry, subject, run, withdraw=withdraw)


def join(authority: Authority, group: str, *names: str) -> None:
    with authority.registry.transaction():
        for name in names:
            authority.registry.set_groups(name, [group])


def test_a_device_has_its_own_runs_and_those_of_its_groups(authority: Authority) -> None:
    registry = authority.registry
    assert list_excluded(registry, "r") == frozenset()
    join(authority, "eu", "pi", "pad")
    change(authority, EU, "r")
    change(authority, PI, "s")
    assert [list_excluded(registry, run) for run in "rst"] == [set(), {"pad"}, {"pi", "pad"}]
    change(authority, EU, "r", withdraw=True)
    assert list_excluded(registry, "r") == {"pi", "pad"}, "the last run leaves none, not all"
    change(authority, EU, None)
    assert list_excluded(registry, "r") == {"pi"}, "a limit of its own remains"
    assert list_limits(registry) == {PI: ("s",)}


def test_a_device_that_leaves_a_limited_group_stays_limited(authority: Authority) -> None:
    join(authority, "eu", "pi", "pad")
    change(authority, EU, "r")
    join(authority, "us", "pi")
    assert list_excluded(authority.registry, "r") == {"pi"}
    assert list_excluded(authority.registry, "s") == {"pi", "pad"}
    change(authority, PI, None)
    assert list_excluded(authority.registry, "s") == {"pad"}


def test_exclusions_name_the_runs_of_the_authority_and_those_that_were_granted(
    authority: Authority,
) -> None:
    change(authority, PI, "r")
    add_run(authority.registry, "other")
    change(authority, PAD, "s")
    assert list_exclusions(authority.registry) == {"pi": ("other", "s"), "pad": ("other", "r")}


def test_a_device_is_enrolled_for_named_runs_and_its_rights_change_later(tmp_path: Path) -> None:
    command(tmp_path, "enroll", "pi", "--host", "h", "--run", "r", "--run", "s")
    command(tmp_path, "enroll", "pad", "--host", "h", "--group", "eu")
    assert command(tmp_path, "grant").stdout == "pi: r, s\n"
    assert command(tmp_path, "grant", "pi", "--run", "r", "--off").stdout == "pi: s\n"
    given = command(tmp_path, "grant", "pi", "--group", "eu", "--run", "t")
    assert given.stdout == "pi: s, t\ngroup eu: t\n"
    assert command(tmp_path, "grant", "pi", "--every-run").stdout == "pi: every run\n"
    assert read_excluded({"broker": {"tls": True, "pki": str(tmp_path / "pki")}}, "s") == ["pad"]
    rows, damage = audit_log.read(tmp_path / "pki" / "registry.sqlite")
    assert not damage
    assert [(row.what, row.about) for row in rows if row.what != "enroll"] == [
        ("grant run r", "pi"),
        ("grant run s", "pi"),
        ("add to eu", "pad"),
        ("withdraw run r", "pi"),
        ("grant run t", "pi"),
        ("grant run t", "group eu"),
        ("grant every run", "pi"),
    ]


def test_a_run_that_never_used_the_authority_is_granted_with_a_warning(tmp_path: Path) -> None:
    command(tmp_path, "enroll", "pi", "--host", "h", "--run", "harvest")
    mistyped = command(tmp_path, "grant", "pi", "--run", "harvst")
    assert mistyped.stdout == "pi: harvest, harvst\n"
    assert "unknown run 'harvst'; did you mean harvest?" in mistyped.stderr
    assert command(tmp_path, "grant", "pi", "--run", "harvst", "--off").stderr == ""
    assert (
        "unknown run 'harvst'"
        in command(tmp_path, "grant", "pi", "--run", "harvst", "--off").stderr
    )
    with closing(Authority(tmp_path / "pki")) as authority:
        add_run(authority.registry, "next")
    assert command(tmp_path, "grant", "pi", "--run", "next").stderr == ""


def test_a_list_names_the_runs_of_its_devices(tmp_path: Path) -> None:
    (tmp_path / "names.csv").write_text("name,runs\npi,r s\npad,\n")
    words = "--from", str(tmp_path / "names.csv"), "--out", str(tmp_path / "tokens.csv")
    command(tmp_path, "enroll", "--host", "h", *words)
    assert command(tmp_path, "grant").stdout == "pi: r, s\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("pi", "--run", "r", "--off"), "pi may take part in every run"),
        (("p1", "--run", "r"), "unknown agent 'p1'; known: pi"),
        (("--group", "eu", "--run", "r"), "unknown group 'eu'"),
        (("pi", "--run", "a/b"), "run name: expected"),
        (("pi", "--run", "*"), "run name: expected"),
        (("pi", "--run", "*", "--off"), "run name: expected"),
        (("pi",), "either --run RUN or --every-run"),
        (("pi", "--off", "--every-run"), "--off needs --run"),
        (("--run", "r"), "expected NAME"),
    ],
)
def test_what_cannot_be_granted_changes_nothing(
    tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    command(tmp_path, "enroll", "pi", "--host", "h")
    assert problem in command(tmp_path, "grant", *words, code=2).stderr
    assert "every device" in command(tmp_path, "grant").stdout


def test_the_limit_of_a_group_without_members_can_be_changed(tmp_path: Path) -> None:
    command(tmp_path, "enroll", "pi", "--group", "eu", "--host", "h")
    command(tmp_path, "grant", "--group", "eu", "--run", "r")
    command(tmp_path, "group", "eu", "pi", "--off")
    assert command(tmp_path, "grant", "--group", "eu", "--run", "r", "--off").stdout == (
        "group eu: no run\n"
    )


def announce(link: Link, name: str) -> None:
    status = envelope.encode(messages.Status(name, "s", True))
    link.publish(topics.status("r", name), status, retain=True)


@pytest.mark.broker
@needs_mosquitto
def test_a_device_without_the_right_is_refused_and_reads_nothing_of_the_run(
    tmp_path: Path, authority: Authority
) -> None:
    """Neither during the run, when the right is withdrawn, nor later."""
    with brokers.start(
        port=0, directory=tmp_path / "broker", clients=authority.tls_files
    ) as broker:
        access = BrokerAccess(broker.url)
        watcher = AuthorityWatcher(authority, access, broker, run="r")
        address = replace(parse_mqtt_address(broker.url), host="localhost")
        with (
            closing(MqttLink(address, "coordinator-r")) as own,
            closing(
                MqttLink(replace(address, cert=str(member(authority, "pi", tmp_path))), "r-pi")
            ) as pi,
            closing(
                MqttLink(replace(address, cert=str(member(authority, "pad", tmp_path))), "r-pad")
            ) as pad,
        ):
            card = messages.Run("r", "fedavg", "mlp", None, (), 1, "s")
            fleet = MessageLoop(own, card, tmp_path / "spool")
            fleet.follow(broker_access=access)
            fleet.endpoint.announce()
            model = topics.chunk(topics.model("r", "a", "w1"), 0)
            for name, link in (("pi", pi), ("pad", pad)):
                link.subscribe(model)
                link.subscribe(topics.command("r", name))
                announce(link, name)
            eventually(lambda: (fleet.turn(0.05), len(fleet.agents) == 2)[1])
            change(authority, PI, "s")  # and no other

            def is_out() -> bool:
                watcher.poll()
                fleet.turn(0.05)
                return fleet.agents["pi"].absence == "refused: it has no right to this run"

            eventually(is_out)
            assert fleet.agents["pad"].online
            heard: list[messages.Message] = []

            def is_told() -> bool:
                fleet.turn(0.05)
                if (delivery := pi.receive(0.1)) and delivery.topic == topics.command("r", "pi"):
                    heard.append(envelope.decode(delivery.payload))
                return bool(heard)

            eventually(is_told)
            assert isinstance(heard[-1], messages.Refusal)
            assert heard[-1].about == messages.JOINING
            assert "coordinator grant pi --run r" in heard[-1].reason
            own.publish(model, b"weights")
            own.publish(topics.command("r", "pi"), b"last")
            assert model not in receive_until(pi, b"last")
            eventually(lambda: (got := pad.receive(0.1)) is not None and got.topic == model)
            change(authority, PI, "r")

            def is_back() -> bool:
                watcher.poll()
                announce(pi, "pi")
                fleet.turn(0.05)
                own.publish(model, b"weights")
                return (got := pi.receive(0.1)) is not None and got.topic == model

            eventually(is_back)
            assert fleet.agents["pi"].online
            change(authority, PI, "r", withdraw=True)
            eventually(is_out)
            with pytest.raises(LinkError, match="Not authorized"):
                send_until_refused(pi, topics.upload("r", "pi", "t"))


@pytest.mark.broker
@needs_mosquitto
def test_an_external_mosquitto_gets_the_rights_of_all_runs(
    tmp_path: Path, authority: Authority
) -> None:
    add_run(authority.registry, "r")
    pem = member(authority, "pi", tmp_path)
    change(authority, PI, "s")
    with shipped("tls.conf", authority, tmp_path) as broker:
        own = open_when_ready(broker.address(authority.coordinator))
        with closing(own), closing(open_when_ready(broker.address(pem))) as pi:
            for run in "rs":
                pi.subscribe(topics.release_card(run))
            for run in "rs":
                own.publish(topics.release_card(run), run.encode(), retain=True)
            assert receive_until(pi, b"s") == [topics.release_card("s")]
    text = (tmp_path / "broker" / ACL_FILE).read_text()
    assert "user pi\ntopic deny fl/v1/r/model/#\n" in text


def send_until_refused(link: Link, topic: str) -> None:
    def send() -> bool:
        link.publish(topic, b"update")
        link.receive(0.1)
        return False

    eventually(send)


def receive_until(link: Link, last: bytes) -> list[str]:
    """Return the topics of what arrives, up to the message with the content `last`."""
    found: list[str] = []

    def came() -> bool:
        if (got := link.receive(0.1)) is not None:
            found.append(got.topic)
        return got is not None and got.payload == last

    eventually(came)
    return found


def open_when_ready(address: MqttAddress) -> MqttLink:
    """Connect to a broker that has just been started."""

    def try_to_open() -> MqttLink | None:
        try:
            return MqttLink(address, f"client-{secrets.token_hex(4)}", timeout=5)
        except LinkError:
            return None

    return cast("MqttLink", eventually(try_to_open))


def test_the_table_of_devices_names_those_without_the_right() -> None:
    made = {
        "run": "r",
        "rounds_done": 0,
        "round": 0,
        "agents": [],
        "excluded": ["pad", "pi"],
        "untrained": [],
    }
    assert render_agents(made).endswith(
        "no right to this run: pad, pi; give it with: coordinator grant NAME --run r"
    )
