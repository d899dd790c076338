"""Access to the broker during a run: certificates, revocation and restarts."""

from __future__ import annotations

import errno
import json
import signal
import socket
import ssl
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.access.broker_setup import (
    REVOKED,
    AuthorityWatcher,
    BrokerAccess,
    open_broker_access,
)
from coordinator.access.certificate_authority import LIFE, Authority
from coordinator.broker import local_broker as brokers
from coordinator.broker.client_disconnection import find_plugin
from coordinator.broker.mosquitto_config import Rights, find_mosquitto
from coordinator.cli.main import main
from coordinator.fleet.message_loop import MessageLoop
from coordinator.settings.service_tables import Broker
from edge_agent.access import enrolment
from edge_agent.access.broker_credentials import renew_if_due, resolve_broker
from edge_agent.access.enrolment import encode_key
from edge_agent.access.enrolment_files import load_credentials
from federated.certificate_request import sign_request
from federated.errors import ConfigError, LinkError, StoreError
from federated.runtime import server_process
from federated.wire import envelope, messages, topics
from federated.wire.link import LINK_UP, OVERHEAD
from federated.wire.links.catalogue import open_link
from federated.wire.links.mqtt import MqttLink
from federated.wire.mqtt_address import parse_mqtt_address
from tests.support.brokers import needs_mosquitto
from tests.support.certificate_authority import member, shipped
from tests.support.links import connect
from tests.support.strangers import wait_for_failure
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for changes of the authority ten times as often."""
    monkeypatch.setattr(server_process, "POLL", 0.1)


@contextmanager
def opened(folder: Path, **more: object) -> Iterator[tuple[BrokerAccess, list[str]]]:
    """Yield broker access on free ports, and its messages."""
    said: list[str] = []
    wanted = Broker(**{"port": 0, "tls": True, "enrol": 0, "pki": str(folder / "pki"), **more})  # type: ignore[arg-type]
    with open_broker_access(wanted, folder, said.append) as broker_access:
        yield broker_access, said


def run(folder: Path, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, [*words, "--pki", str(folder / "pki")])
    assert result.exit_code == code, result.output
    return result.stdout


def token_for(folder: Path, name: str) -> str:
    return run(folder, "enroll", name, "--host", "localhost").strip()


@pytest.mark.broker
@needs_mosquitto
@pytest.mark.parametrize("plugin", [True, False])
def test_an_agent_revoked_during_a_run_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugin: bool
) -> None:
    """With mosquitto's plugin the others stay connected; without it, they reconnect."""
    if not plugin:
        monkeypatch.setattr("coordinator.broker.local_broker.find_plugin", lambda program: None)
    elif find_plugin(find_mosquitto() or "") is None:
        pytest.skip("mosquitto_dynamic_security.so is not installed")
    with opened(tmp_path) as (broker_access, _):
        link = open_link(broker_access.address, "coordinator-r")
        fleet = MessageLoop(
            link, messages.Run("r", "fedavg", "mlp", None, (), 1, "s"), tmp_path / "spool"
        )
        fleet.follow(broker_access=broker_access)
        fleet.endpoint.announce()
        addresses = {
            name: str(resolve_broker(None, None, token_for(tmp_path, name))[0])
            for name in ("good", "lost")
        }
        links = {name: open_link(address, f"r-{name}") for name, address in addresses.items()}
        for name, one in links.items():
            one.publish(
                topics.status("r", name),
                envelope.encode(messages.Status(name, "s", True)),
                retain=True,
            )
        eventually(
            lambda: (
                fleet.turn(0.05),
                {n for n, a in fleet.agents.items() if a.online} == {"good", "lost"},
            )[1]
        )

        start = time.monotonic()
        run(tmp_path, "revoke", "lost")
        eventually(lambda: (fleet.turn(0.05), fleet.agents["lost"].refused)[1])
        refused = time.monotonic() - start
        assert fleet.agents["lost"].absence == f"refused: {REVOKED}"
        assert refused < 3.0

        def ended() -> bool:
            try:
                links["lost"].receive(0.05)
            except LinkError as error:
                return "this client's certificate was revoked" in str(
                    error
                ) or "Not authorized" in str(error)
            return False

        def back() -> bool:
            delivery = links["good"].receive(0.05)
            return delivery is not None and delivery.topic == LINK_UP

        eventually(ended)
        if plugin:
            with pytest.raises(LinkError, match="revoked"):
                open_link(addresses["lost"], "another-id")
            assert links["good"].receive(1.0) is None, "it was never disconnected"
        else:
            eventually(back)
        links["good"].publish(topics.say("r", "good"), b"still here")
        for one in (*links.values(), link):
            one.close()


@pytest.mark.broker
@needs_mosquitto
def test_a_revoked_device_is_disconnected_even_if_another_enrols_under_its_name_at_once(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "pki")
    with brokers.start(
        port=0, directory=tmp_path / "broker", clients=authority.tls_files
    ) as broker:
        access = BrokerAccess(broker.url)
        watcher = AuthorityWatcher(authority, access, broker)
        address = replace(parse_mqtt_address(broker.url), host="localhost")
        stolen = replace(address, cert=str(member(authority, "a", tmp_path)))
        thief = MqttLink(stolen, "r-thief", timeout=5)
        authority.revoke("a")
        own = replace(address, cert=str(member(authority, "a", tmp_path)))
        watcher.poll()
        assert not access.barred
        assert "certificate was revoked" in wait_for_failure(thief)
        with pytest.raises(LinkError, match="certificate was revoked"):
            MqttLink(stolen, "r-thief", timeout=5)
        MqttLink(own, "r-a", timeout=5).close()
        thief.close()
    authority.close()


@pytest.mark.broker
@needs_mosquitto
@pytest.mark.parametrize("tls", [False, True])
def test_a_killed_broker_is_restarted(tmp_path: Path, tls: bool) -> None:
    with opened(tmp_path, tls=tls) as (broker_access, _):
        link = open_link(broker_access.address, "coordinator-r")
        (program,) = [
            p for p in psutil.Process().children(recursive=True) if p.name() == "mosquitto"
        ]
        program.kill()
        eventually(lambda: (d := link.receive(0.05)) is not None and d.topic == LINK_UP)
        link.close()


def test_a_failed_poll_is_repeated(tmp_path: Path) -> None:
    """The coordinator refuses the agent at once, even while the broker cannot be updated."""
    reloaded: list[frozenset[str]] = []

    class Full:
        def restart_if_dead(self) -> None: ...

        def reload(self, rights: Rights) -> None:
            reloaded.append(rights.barred)
            if len(reloaded) == 1:
                raise OSError(errno.ENOSPC, "no space")

        def disconnect(self, names: frozenset[str]) -> None: ...

    authority, broker_access = Authority(tmp_path / "pki"), BrokerAccess("h")
    watcher = AuthorityWatcher(authority, broker_access, Full())  # type: ignore[arg-type]
    member(authority, "a", tmp_path)
    authority.revoke("a")
    with pytest.raises(OSError, match="no space"):
        watcher.poll()
    assert broker_access.barred == {"a"}
    watcher.poll()
    watcher.poll()
    assert reloaded == [{"a"}, {"a"}]
    authority.registry.close()
    with pytest.raises(StoreError):  # which Poller logs
        watcher.poll()


@pytest.mark.broker
@needs_mosquitto
def test_a_certificate_renewed_during_a_connection_is_used_at_the_next_one(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "pki")
    with shipped("tls.conf", authority, tmp_path) as tls_broker:
        token = authority.invite("a", "localhost", 8884, 60)
        key = ec.generate_private_key(ec.SECP256R1())
        pem = tmp_path / "agent.pem"
        first = authority.enrol(token.secret, sign_request("a", key))
        certificate = enrolment.x509.load_pem_x509_certificate(first.encode()).public_bytes(
            enrolment.serialization.Encoding.DER
        )
        pem.write_bytes(
            authority.renew(certificate, sign_request("a", key), life=timedelta(seconds=4)).encode()
            + encode_key(key)
        )
        link = connect(tls_broker.address(pem), "r-a")
        time.sleep(4)  # the certificate of the first connection has expired
        pem.write_bytes(first.encode() + encode_key(key))
        tls_broker.restart()
        eventually(lambda: (d := link.receive(0.05)) is not None and d.topic == LINK_UP)
        link.close()
    authority.close()


@pytest.mark.broker
@needs_mosquitto
def test_tls_needs_only_the_flag_and_a_token(tmp_path: Path) -> None:
    with opened(tmp_path, listen="0.0.0.0") as (broker_access, said):
        assert "mqtts://" in said[0]
        assert "devices enrol at port" in said[0]
        broker, name = resolve_broker(None, None, token_for(tmp_path, "pi-kitchen"))
        assert name == "pi-kitchen"
        open_link(str(broker), "r-pi-kitchen").close()
        assert not renew_if_due(load_credentials()[0])
        assert parse_mqtt_address(broker_access.address).cert == str(
            tmp_path / "pki" / "coordinator.pem"
        )
        listing = json.loads(run(tmp_path, "authority", "--format", "json"))
        assert [(agent["name"], agent["state"]) for agent in listing["agents"]] == [
            ("pi-kitchen", "valid")
        ]


@pytest.mark.broker
@needs_mosquitto
@pytest.mark.parametrize("hangup", [signal.SIG_DFL, signal.SIG_IGN], ids=["plain", "nohup"])
def test_a_broker_certificate_with_a_new_name_is_used_without_a_restart(
    tmp_path: Path, hangup: signal.Handlers, request: pytest.FixtureRequest
) -> None:
    before = signal.signal(signal.SIGHUP, hangup)  # the broker inherits it
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, before))
    with opened(tmp_path) as (broker_access, _):
        address = parse_mqtt_address(broker_access.address)

        def names() -> str:
            context = ssl.create_default_context(cafile=address.ca)
            context.load_cert_chain(str(address.cert))
            with (
                socket.create_connection((address.host, address.port)) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as link,
            ):
                return str(link.getpeercert())

        assert "new.example" not in names()
        run(tmp_path, "authority", "--host", "new.example")
        eventually(lambda: "new.example" in names())


@pytest.mark.broker
@needs_mosquitto
def test_an_external_broker_works_with_the_coordinators_certificate_and_enrolment(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "pki")
    with (
        shipped("tls.conf", authority, tmp_path) as tls_broker,
        opened(tmp_path, url=f"mqtts://localhost:{tls_broker.port}") as (broker_access, said),
    ):
        assert "using the broker at mqtts://localhost" in said[0]
        eventually(lambda: lets_in(broker_access.address))
        broker, _ = resolve_broker(None, None, token_for(tmp_path, "a"))
        open_link(str(broker), "r-a").close()
    authority.close()


def lets_in(address: str) -> bool:
    try:
        MqttLink(address, "coordinator-r", timeout=2).close()
    except LinkError:
        return False
    return True


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"passwords": "users"}, "cannot be combined"),
        ({"url": "mqtt://h"}, "expected mqtts://HOST.*found mqtt://h:1883"),
        ({"listen": "my-host"}, "expected an IP address or localhost"),
        ({"hosts": ("a b",)}, "host: expected"),
    ],
)
def test_conflicting_settings_are_refused_before_anything_starts(
    tmp_path: Path, more: dict[str, object], why: str
) -> None:
    with pytest.raises(ConfigError, match=why), opened(tmp_path, **more):
        pass


def test_tls_requires_mosquitto(tmp_path: Path) -> None:
    with (
        pytest.raises(LinkError, match=r"broker\.tls requires mosquitto.*broker\.kind = 'auto'"),
        opened(tmp_path, kind="embedded"),
    ):
        pass


def test_files_for_an_external_broker_are_private(tmp_path: Path) -> None:
    output = run(tmp_path, "authority", "--for-broker", str(tmp_path / "own"))
    assert "rights.acl" in output
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "own").iterdir()}
    assert modes == dict.fromkeys(["ca.pem", "crl.pem", "rights.acl", "server.pem"], 0o600)


def test_unknown_agents_and_invalid_arguments_are_refused(
    tmp_path: Path,
) -> None:
    run(tmp_path, "revoke", "a", code=7)
    assert not (tmp_path / "pki").exists()  # a wrong --pki creates no authority
    run(tmp_path, "enroll", "a")
    run(tmp_path, "revoke", "nobody", code=2)
    run(tmp_path, "enroll", "a", "--valid", "soon", code=2)
    run(tmp_path, "enroll", "b", "--valid", f"{LIFE.days}d")
    run(tmp_path, "enroll", "c", "--valid", f"{LIFE.days + 1}d", code=2)
    run(tmp_path, "enroll", "all", code=2)
    (tmp_path / "pki").chmod(0o755)
    run(tmp_path, "enroll", "a", code=3)


@needs_mosquitto
def test_a_token_holds_the_address_of_the_coordinator(tmp_path: Path) -> None:
    with opened(tmp_path):
        token = run(tmp_path, "enroll", "a").strip()
    assert token.startswith("a@127.0.0.1:")


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "coordinator.access.certificate_authority", None)
    result = CliRunner().invoke(main, ["enroll", "a", "--pki", str(tmp_path)])
    assert result.exit_code == 4
    assert "[secure]" in result.output


@pytest.mark.broker
@needs_mosquitto
@pytest.mark.parametrize(("chunk", "largest"), [(0, 1 << 20), (2 << 20, (2 << 20) + OVERHEAD)])
def test_a_started_broker_accepts_only_packets_that_a_run_needs(
    tmp_path: Path, chunk: int, largest: int
) -> None:
    """Packets of 16 MB filled the coordinator's queue. The embedded broker has the same limit, but
    does not announce it.
    """
    wanted = Broker(port=0)
    with (
        open_broker_access(wanted, tmp_path, lambda text: None, chunk) as broker_access,
        closing(MqttLink(broker_access.address, "a")) as link,
    ):
        assert link.max_payload == largest - OVERHEAD


def test_a_suspended_agent_loses_its_rights_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, frozenset[str]]] = []

    class Recorder:
        def restart_if_dead(self) -> None: ...

        def reload(self, rights: Rights) -> None:
            calls.append(("reload", rights.barred))

        def disconnect(self, names: frozenset[str]) -> None:
            calls.append(("disconnect", names))

    authority, broker_access = Authority(tmp_path / "pki"), BrokerAccess("h")
    watcher = AuthorityWatcher(authority, broker_access, Recorder())  # type: ignore[arg-type]
    broker_access.suspend("a")
    watcher.poll()
    assert calls == [("reload", {"a"}), ("disconnect", {"a"})]
    assert not broker_access.barred, "the coordinator may hear it again later"
    later = time.monotonic() + 601.0
    monkeypatch.setattr("coordinator.access.broker_setup.time.monotonic", lambda: later)
    watcher.poll()
    assert calls[2:] == [("reload", frozenset())]
    authority.close()
