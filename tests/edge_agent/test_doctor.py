"""Each thing that can stand in the way is found where it is, and said with a remedy: against real brokers, sockets and certificates."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator import broker as brokers
from coordinator.authority import Authority
from coordinator.fleet import Fleet
from edge_agent import doctor_device, doctor_wire
from edge_agent.cli import main
from edge_agent.doctor import Check, as_json, exit_code, text
from edge_agent.doctor_wire import wire
from edge_agent.heat import Heat
from federated.errors import LinkError
from federated.wire import envelope, messages
from federated.wire.address import Address, url
from federated.wire.link import CHUNK, OVERHEAD, MqttLink
from models.families import network, probes
from models.submodel import Network
from tests.support.authority import member, shipped

NETWORK = network("preresnet", (1, 8, 8), 10)
CARD = messages.Run("r", "fedavg", "preresnet", NETWORK, probes(NETWORK, [2]), 32, "s")
needs_mosquitto = pytest.mark.skipif(brokers.find_mosquitto() is None, reason="mosquitto is not installed")


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_wire, "PATIENCE", 2.0)


def tried(broker: str, name: str = "pi", run: str | None = None) -> dict[str, Check]:
    return {one.name: one for one in wire(broker, run, name) if isinstance(one, Check)}


def states(found: dict[str, Check]) -> dict[str, str]:
    return {name: check.state for name, check in found.items()}


@contextlib.contextmanager
def coordinating(url: str | Address, folder: Path) -> Iterator[None]:
    """A coordinator's half of the protocol, for a run that nobody has joined."""
    link, until = None, time.monotonic() + 10
    while link is None:
        try:
            link = MqttLink(url, "coordinator", timeout=2)
        except LinkError:  # the broker is only starting
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
    fleet, over = Fleet(link, CARD, folder / "spool"), threading.Event()
    fleet.announce()

    def turn() -> None:
        while not over.is_set():
            fleet.turn(0.05)

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        assert not fleet.agents, "who only tries the way is no agent"
        link.close()


# ---- without a broker --------------------------------------------------------------------------------------------------


def test_a_name_that_does_not_resolve_is_said_and_nothing_more_is_tried() -> None:
    found = tried("nowhere.invalid")
    assert states(found) == {"dns": "fail"}
    assert found["dns"].exit == 5
    assert "give an address" in found["dns"].remedy


def test_a_port_where_nobody_listens_is_said() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found = tried(f"localhost:{probe.getsockname()[1]}")
    assert states(found) == {"dns": "ok", "tcp": "fail"}
    assert "start a broker" in found["tcp"].remedy


def test_a_port_where_something_else_listens_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = tried(f"127.0.0.1:{server.getsockname()[1]}")
    assert states(found) == {"dns": "ok", "tcp": "ok", "tls": "ok", "credentials": "fail"}
    assert "does not answer as an MQTT broker" in text(found["credentials"])


def certificate(names: list[str], days: tuple[float, float], folder: Path, label: str) -> Path:
    """A self-signed one that is valid from and until so many days from now, with its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, label)])
    alternatives = [x509.IPAddress(ipaddress.ip_address(one)) if one[0].isdigit() else x509.DNSName(one) for one in names]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / f"{label}.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


@contextlib.contextmanager
def speaking_tls(pem: Path) -> Iterator[int]:
    """A server that only greets by TLS; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    plain, _ = server.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as made:
                    made.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("names", "days", "trusted", "state", "words"),
    [
        (["127.0.0.1"], (-400, -1), True, "fail", "certificate has expired"),
        (["127.0.0.1"], (1, 30), True, "fail", "not yet valid"),
        (["broker.example"], (-1, 30), True, "fail", "is for broker.example"),
        (["127.0.0.1"], (-1, 30), False, "fail", "give its authority"),
        (["127.0.0.1"], (-1, 3), True, "warn", "3 days left"),
        (["127.0.0.1"], (-1, 30.5), True, "ok", "30 days left"),
    ],
)
def test_a_brokers_certificate_is_looked_at(
    names: list[str], days: tuple[float, float], trusted: bool, state: str, words: str, tmp_path: Path
) -> None:
    pem = certificate(names, days, tmp_path, "server")
    ca = pem if trusted else certificate(["other"], (-1, 30), tmp_path, "other")
    with speaking_tls(pem) as port:
        check = doctor_wire.encrypted(doctor_wire.parse_address(f"mqtts://127.0.0.1:{port}?ca={ca}"))
    assert check.state == state, text(check)
    assert words in text(check)
    if "expired" in words or "valid" in words:
        assert "this device's clock says" in check.remedy


def test_an_own_certificate_that_ended_or_is_of_another_is_said(tmp_path: Path) -> None:
    def seen(path: Path, name: str) -> Check:
        return doctor_wire.own_certificate(doctor_wire.parse_address(f"mqtts://h?cert={path}"), name)

    mine = certificate(["x"], (-1, 60.5), tmp_path, "pi")
    assert seen(mine, "pi") == Check("certificate", "ok", "of pi, 60 days left")
    assert (seen(mine, "pa").state, seen(mine, "pa").exit) == ("fail", 3)
    assert "enrol this device anew" in seen(certificate(["x"], (-9, -1), tmp_path, "old"), "old").remedy
    (tmp_path / "none.pem").write_text("nothing")
    assert "holds no certificate" in seen(tmp_path / "none.pem", "pi").found


# ---- with one ----------------------------------------------------------------------------------------------------------


@pytest.mark.broker
@needs_mosquitto
def test_a_broker_with_users_and_a_coordinator_pass_every_check(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("pi:secret-of-pi\npa:secret-of-pa\n")
    with (
        brokers.start(port=0, kind="mosquitto", directory=tmp_path / "b", passwords=tmp_path / "users") as broker,
        coordinating(broker.url, tmp_path),
    ):
        found = tried(f"mqtt://pi:secret-of-pi@{broker.address}")
        other = tried(f"mqtt://pa:secret-of-pa@{broker.address}")
        wrong = tried(f"mqtt://pi:no@{broker.address}")
    assert set(states(found).values()) == {"ok"}, [text(check) for check in found.values()]
    assert found.keys() == {"dns", "tcp", "tls", "credentials", "run", "rights", "strangers", "packets", "coordinator", "skew", "clock"}
    assert other["rights"].state == "fail", "pa may not speak as pi"
    assert "use %u" in other["rights"].remedy
    assert wrong["credentials"].state == "fail"
    assert "mqtt://user:password@host" in wrong["credentials"].remedy
    assert "secret-of-pi" not in " ".join(map(text, found.values()))


@pytest.mark.broker
@needs_mosquitto
def test_an_enrolled_device_passes_and_one_without_a_certificate_or_of_another_name_does_not(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    with shipped("tls.conf", authority, tmp_path) as door, coordinating(door.address(authority.coordinator), tmp_path):
        mine = member(authority, "pi", tmp_path)
        ca = certificate(["x"], (-1, 30), tmp_path, "other")
        found, other = tried(url(door.address(mine))), tried(url(door.address(mine)), "pa")
        nobody, foreign = tried(url(door.address(None))), tried(url(door.address(mine, ca=ca)))
    authority.close()
    assert set(states(found).values()) == {"ok"}, [text(check) for check in found.values()]
    assert "TLSv1.3" in found["tls"].found
    assert "let in by its certificate" in found["credentials"].found
    assert found["certificate"].found.startswith("of pi, ")
    assert found["strangers"].found.startswith("the broker keeps agents from each other's topics")
    assert (other["certificate"].state, other["rights"].state) == ("fail", "fail")
    assert list(states(nobody).values())[-1] == "fail"
    assert "edge-agent join --token" in text(list(nobody.values())[-1])
    assert states(foreign) == {"dns": "ok", "tcp": "ok", "tls": "fail"}
    assert "give its authority" in foreign["tls"].remedy


@pytest.mark.broker
@needs_mosquitto
def test_a_broker_that_knows_nobody_and_has_no_run_is_warned_of(tmp_path: Path) -> None:
    with brokers.start(port=0, kind="mosquitto", directory=tmp_path) as broker:
        found = tried(broker.address)
    assert {name for name, state in states(found).items() if state != "ok"} == {"run", "strangers"}
    assert found["strangers"].found == "any client may publish under another's name"


@pytest.mark.broker
@needs_mosquitto
@pytest.mark.parametrize(("limit", "state"), [(100_000, "warn"), (20_000, "fail"), (CHUNK + 3 * OVERHEAD, "ok")])
def test_a_small_packet_limit_is_found(limit: int, state: str, tmp_path: Path) -> None:
    with brokers.start(port=0, kind="mosquitto", directory=tmp_path, max_packet=limit) as broker:
        check = tried(broker.address)["packets"]
    assert check.state == state, text(check)
    assert f"the broker says {limit} bytes" in check.found
    assert ("max_packet_size" in check.remedy) == (state != "ok")


@pytest.mark.broker
@needs_mosquitto
def test_a_coordinator_that_does_not_answer_and_runs_to_choose_from_are_said(tmp_path: Path) -> None:
    with brokers.start(port=0, kind="mosquitto", directory=tmp_path) as broker:
        link = MqttLink(broker.address, "a coordinator that hangs")
        link.publish("fl/v1/r/run", envelope.encode(CARD), retain=True)
        alone = tried(broker.address)
        link.publish("fl/v1/q/run", envelope.encode(messages.Run("q", "fedavg", "preresnet", None, (), 32, "s")), retain=True)
        time.sleep(0.2)
        several, named = tried(broker.address), tried(broker.address, run="q")
        link.close()
    assert alone["coordinator"].state == "warn"
    assert (several["run"].state, several["run"].exit) == ("fail", 6)
    assert "choose one by --run" in several["run"].remedy
    assert named["run"].state == "ok"


@pytest.mark.broker
def test_a_broker_of_the_older_protocol_is_tried_too(tmp_path: Path) -> None:
    with brokers.start(port=0, kind="amqtt", directory=tmp_path) as broker, coordinating(broker.url, tmp_path):
        found = tried(broker.address)
    assert "MQTT 3.1.1" in found["credentials"].found
    assert {name for name, state in states(found).items() if state != "ok"} == {"strangers"}, [text(check) for check in found.values()]


# ---- the device --------------------------------------------------------------------------------------------------------


def test_clocks_are_compared() -> None:
    assert doctor_wire.skewed(0.5, 0.1).state == "ok"
    assert doctor_wire.skewed(20.0, 0.1).state == "warn"
    assert doctor_wire.skewed(20.0, 60.0).state == "ok", "the answer took too long to tell"
    assert (doctor_wire.skewed(-900.0, 0.1).state, doctor_wire.skewed(-900.0, 0.1).exit) == ("fail", 3)
    assert "ahead of" in doctor_wire.skewed(-900.0, 0.1).found
    assert doctor_wire.skewed(float("nan"), 0.1).state == "warn"


def test_a_clock_before_the_installation_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_wire.clock().state == "ok"
    monkeypatch.setattr(time, "time", lambda: 86400.0)
    assert doctor_wire.clock().state == "fail"


def test_a_disk_without_room_or_rights_is_said(tmp_path: Path) -> None:
    assert doctor_device.disk(tmp_path / "not" / "yet", 10**6).state == "ok"
    assert doctor_device.disk(tmp_path, 10**18).state == "fail"
    unwritable = doctor_device.disk(Path("/proc/self"), None)
    assert (unwritable.state, unwritable.exit) == ("fail", 7)


def test_memory_that_holds_not_the_least_submodel_fails() -> None:
    assert doctor_device.memory(10**6).state == "ok"
    check = doctor_device.memory(10**15)
    assert (check.state, check.exit) == ("fail", 6)
    assert "method.widths" in check.remedy


def test_what_a_run_needs_is_counted_from_its_card() -> None:
    largest, least = doctor_device.needed(CARD) or (0, 0)
    assert largest > 4 * 10_000
    assert least > 16 * 10**6
    assert doctor_device.needed(None) is None
    assert doctor_device.needed(messages.Run("r", "m", "x", Network("nothing:here", "", (1,), 2), CARD.calibration, 32, "s")) is None


def test_runtimes_that_are_missing_or_die_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor_device.TRIAL, "torch", "raise ModuleNotFoundError(\"No module named 'torch'\")")
    assert doctor_device.runtime("torch") == Check("torch", "warn", "not installed: this device can answer, not train", doctor_device.TRAIN)
    monkeypatch.setitem(doctor_device.TRIAL, "torch", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    died = doctor_device.runtime("torch")
    assert (died.state, died.exit, died.found) == ("fail", 4, "ended by signal 4")
    monkeypatch.setitem(doctor_device.TRIAL, "onnxruntime", "raise OSError('libgomp.so.1: cannot open')")
    assert "libgomp.so.1" in doctor_device.runtime("onnxruntime").found


def test_heat_is_said_where_it_holds_the_device_back() -> None:
    assert doctor_device.heat(Heat()).found == "this machine does not say"
    assert doctor_device.heat(Heat(51.2, 1500.0, False, False)) == Check("heat", "ok", "51 C, 1500 MHz")
    assert doctor_device.heat(Heat(84.0, 600.0, True, True)).state == "warn"


def test_the_first_failure_gives_the_exit_code() -> None:
    checks = [Check("a", "ok", ""), Check("b", "warn", "x", "y", 4), Check("c", "fail", "x", "y", 7), Check("d", "fail", "x", "y", 5)]
    assert exit_code(checks) == 7
    assert json.loads(as_json(checks))["exit"] == 7
    assert exit_code(checks[:2]) == 0
    assert text(Check("run", "ok", "a\x1b[2J\nb")) == "ok    run          a [2J b"


def test_the_command_prints_lines_or_json_and_exits_by_them(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["doctor", "--broker", "127.0.0.1:1", "--name", "pi", "--spool", str(tmp_path), "--format", "json"])
    told = json.loads(refused.output.splitlines()[-1])
    assert refused.exit_code == told["exit"] == 5
    assert not told["fit"]
    assert [row["check"] for row in told["checks"]][:2] == ["dns", "tcp"]
    device = CliRunner().invoke(main, ["doctor", "--spool", str(tmp_path)])
    assert device.exit_code == 0, device.output
    assert device.output.startswith("ok    disk ")
    wrong = CliRunner().invoke(main, ["doctor", "--broker", "http://x"])
    assert wrong.exit_code == 2
