"""A broker and devices with certificates of a company's authority: rights and errors."""

from __future__ import annotations

import base64
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from signal import SIGHUP, SIGKILL

import psutil
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from coordinator import audit_log
from coordinator.access.broker_address import find_broker
from coordinator.access.broker_setup import BrokerAccess, open_broker_access
from coordinator.access.certificate_authority import Authority
from coordinator.access.configured_authority import open_authority
from coordinator.access.outside_authority import read_outside_authority
from coordinator.broker.local_addresses import find_free_port
from coordinator.broker.mosquitto_config import COORDINATOR
from coordinator.cli.main import main
from coordinator.fleet.message_loop import MessageLoop
from coordinator.settings.service_tables import Broker
from edge_agent.access.broker_credentials import resolve_broker
from federated.errors import ConfigError, LinkError
from federated.runtime import server_process
from federated.wire import envelope, messages, topics
from federated.wire.link import Link
from federated.wire.links.catalogue import open_link
from federated.wire.links.mqtt import MqttLink
from federated.wire.mqtt_address import MqttAddress, format_url
from tests.support.brokers import needs_mosquitto
from tests.support.outside_authority import Company
from tests.support.processes import AGENT, Start, result, wait_for_words
from tests.support.processes import COORDINATOR as START
from tests.support.strangers import wait_for_failure
from tests.support.waiting import PATIENCE, eventually


@pytest.fixture
def company(tmp_path: Path) -> Company:
    return Company(tmp_path / "company")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for changes of the authority ten times as often."""
    monkeypatch.setattr(server_process, "POLL", 0.1)


def settings(company: Company, folder: Path) -> Broker:
    server = str(company.issue("broker", ["localhost"]))
    return Broker(
        port=find_free_port("127.0.0.1", 0),
        tls=True,
        pki=str(folder / "pki"),
        ca=str(company.ca),
        certificate=server,
        key=server,
        crl=str(company.crl),
    )


@contextmanager
def opened(company: Company, folder: Path) -> Iterator[tuple[Broker, BrokerAccess]]:
    wanted = settings(company, folder)
    with open_broker_access(wanted, folder / "r", lambda text: None) as access:
        yield wanted, access


def register(folder: Path, *names: str, command: str = "register") -> None:
    result = CliRunner().invoke(main, [command, *names, "--pki", str(folder / "pki")])
    assert result.exit_code == 0, result.output


def locate(wanted: Broker, company: Company, pem: Path | None) -> MqttAddress:
    """Return the broker's address for a device with this certificate."""
    address = MqttAddress("localhost", wanted.port or 0, tls=True, ca=str(company.ca))
    return replace(address, cert=None if pem is None else str(pem))


def receive_until(link: Link, last: bytes) -> list[bytes]:
    """Return the contents of what arrives, up to `last`."""
    found: list[bytes] = []

    def came() -> bool:
        if (got := link.receive(0.1)) is not None:
            found.append(got.payload)
        return last in found

    eventually(came)
    return found


def say_until_heard(sender: Link, listener: Link, topic: str, content: bytes) -> list[bytes]:
    """Publish until it arrives, since a subscription takes a moment. Return what arrived."""
    found: list[bytes] = []

    def came() -> bool:
        sender.publish(topic, content)
        if (got := listener.receive(0.1)) is not None:
            found.append(got.payload)
        return content in found

    eventually(came)
    return found


def is_refused(link: Link, topic: str) -> bool:
    """Return whether a device may not publish."""
    try:
        link.publish(topic, b"more")
        link.receive(0.1)
    except LinkError as error:
        return "Not authorized" in str(error)
    return False


def is_heard(sender: MqttAddress, listener: Link, topic: str) -> bool:
    """Return whether a message of a device that connects anew arrives."""
    try:
        with closing(MqttLink(sender, "r-pi", timeout=5)) as link:
            link.publish(topic, b"again")
            arrived = iter(lambda: listener.receive(1.0), None)
            return any(got.payload == b"again" for got in arrived)
    except LinkError:
        return False


@pytest.mark.broker
@needs_mosquitto
def test_only_registered_names_have_rights(tmp_path: Path, company: Company) -> None:
    """Not even a certificate for the coordinator's usual name."""
    register(tmp_path, "pi")
    with opened(company, tmp_path) as (wanted, access):
        own = open_link(access.address, "coordinator-r")
        own.subscribe(topics.say("r", "pi"))
        own.subscribe(topics.say("r", "pad"))
        links = {
            name: MqttLink(locate(wanted, company, company.issue(name)), f"r-{number}")
            for number, name in enumerate(("pi", "pad", COORDINATOR))
        }
        links["pi"].subscribe(topics.command("r", "pi"))
        links["pad"].publish(topics.say("r", "pad"), b"unknown")
        links[COORDINATOR].publish(topics.command("r", "pi"), b"forged")
        assert b"unknown" not in say_until_heard(links["pi"], own, topics.say("r", "pi"), b"mine")
        own.publish(topics.command("r", "pi"), b"true")
        assert receive_until(links["pi"], b"true") == [b"true"]
        with pytest.raises(LinkError):
            MqttLink(locate(wanted, company, None), "r-none", timeout=5)
        for link in (own, *links.values()):
            link.close()


@pytest.mark.broker
@needs_mosquitto
def test_a_certificate_on_the_companys_list_is_refused_and_disconnected(
    tmp_path: Path, company: Company
) -> None:
    register(tmp_path, "pi", "pad")
    with opened(company, tmp_path) as (wanted, access):
        lost = company.issue("pi")
        pi = MqttLink(locate(wanted, company, lost), "r-pi")
        pad = MqttLink(locate(wanted, company, company.issue("pad")), "r-pad")
        own = open_link(access.address, "coordinator-r")
        own.subscribe(topics.say("r", "pad"))
        company.revoke(lost)
        assert "revoked" in wait_for_failure(pi)
        with pytest.raises(LinkError, match="revoked"):
            MqttLink(locate(wanted, company, lost), "r-pi", timeout=5)
        say_until_heard(pad, own, topics.say("r", "pad"), b"still here")
        MqttLink(locate(wanted, company, company.issue("pi", file="new")), "r-pi").close()
        for link in (pi, pad, own):
            link.close()


@pytest.mark.broker
@needs_mosquitto
def test_a_revoked_name_loses_its_rights_until_it_is_registered_again(
    tmp_path: Path, company: Company
) -> None:
    register(tmp_path, "pi")
    with opened(company, tmp_path) as (wanted, access):
        own = open_link(access.address, "coordinator-r")
        own.subscribe(topics.say("r", "pi"))
        pem = company.issue("pi")
        pi = MqttLink(locate(wanted, company, pem), "r-pi")
        say_until_heard(pi, own, topics.say("r", "pi"), b"first")
        register(tmp_path, "pi", command="revoke")
        eventually(lambda: is_refused(pi, topics.say("r", "pi")))
        assert access.barred == {"pi"}
        pi.close()
        register(tmp_path, "pi")
        eventually(lambda: is_heard(locate(wanted, company, pem), own, topics.say("r", "pi")))
        own.close()
    rows, _ = audit_log.read(tmp_path / "pki" / "registry.sqlite")
    assert [row.what for row in rows] == ["register", "revoke", "register"]


@pytest.mark.broker
@needs_mosquitto
@pytest.mark.parametrize("file", ["ca", "crl", "broker"])
def test_files_that_do_not_fit_are_not_used_and_delay_no_revocation(
    tmp_path: Path, company: Company, caplog: pytest.LogCaptureFixture, file: str
) -> None:
    """Not even by a broker that is started again."""
    register(tmp_path, "pi", "pad")
    with opened(company, tmp_path) as (wanted, access):
        own = open_link(access.address, "coordinator-r")
        own.subscribe(topics.say("r", "pad"))
        pi, pad = (locate(wanted, company, company.issue(name)) for name in ("pi", "pad"))
        good = company.folder / "good.pem"
        good.write_bytes(company.ca.read_bytes())
        link = MqttLink(replace(pi, ca=str(good)), "r-pi")
        (company.folder / f"{file}.pem").write_text("nothing")
        eventually(lambda: "the earlier files of broker.ca stay in use" in caplog.text)
        register(tmp_path, "pi", command="revoke")
        eventually(lambda: is_refused(link, topics.say("r", "pi")))
        for signal in (SIGHUP, SIGKILL):  # it loads its files again, or starts again
            family = psutil.Process().children(recursive=True)
            (broker,) = (one for one in family if one.name() == "mosquitto")
            broker.send_signal(signal)
            eventually(lambda: is_heard(replace(pad, ca=str(good)), own, topics.say("r", "pad")))
        for one in (link, own):
            one.close()
    assert not (tmp_path / "r" / "broker" / "certificates").exists()


@pytest.mark.broker
@needs_mosquitto
def test_a_revoked_certificate_with_a_name_that_was_only_enrolled_is_disconnected(
    tmp_path: Path, company: Company
) -> None:
    with opened(company, tmp_path) as (wanted, access):
        with closing(Authority(tmp_path / "pki", renew=False)) as authority:
            authority.invite("pi", "localhost", 8884, 60)
        eventually(lambda: access.names == {"pi"})
        lost = company.issue("pi")
        with closing(MqttLink(locate(wanted, company, lost), "r-pi")) as pi:
            company.revoke(lost)
            assert "revoked" in wait_for_failure(pi)


@pytest.mark.broker
@needs_mosquitto
def test_a_replaced_certificate_of_the_broker_is_served_at_once(
    tmp_path: Path, company: Company
) -> None:
    with opened(company, tmp_path) as (wanted, _):

        def find_names() -> str:
            context = ssl.create_default_context(cafile=str(company.ca))
            context.load_cert_chain(company.issue("pi"))
            with (
                socket.create_connection(("127.0.0.1", wanted.port or 0)) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as link,
            ):
                return str(link.getpeercert())

        assert "new.example" not in find_names()
        company.issue("broker", ["localhost", "new.example"])
        eventually(lambda: "new.example" in find_names())


@pytest.mark.broker
@needs_mosquitto
def test_the_coordinator_hears_no_name_that_is_not_registered(
    tmp_path: Path, company: Company
) -> None:
    """Also if a broker lets it publish."""
    with opened(company, tmp_path) as (wanted, access):
        register(tmp_path, "pi")
        eventually(lambda: access.names == {"pi"})
        with (
            closing(open_link(access.address, "coordinator-r")) as link,
            closing(open_link(find_broker(wanted), "beside")) as beside,
        ):
            card = messages.Run("r", "fedavg", "mlp", None, (), 1, "s")
            fleet = MessageLoop(link, card, tmp_path / "spool")
            fleet.follow(broker_access=access)
            fleet.endpoint.announce()
            for name in ("pad", "pi"):
                status = envelope.encode(messages.Status(name, "s", True))
                beside.publish(topics.status("r", name), status, retain=True)
            eventually(lambda: (fleet.turn(0.05), "pi" in fleet.agents)[1])
            assert "pad" not in fleet.agents


def test_an_agent_is_called_as_its_certificate_says(tmp_path: Path, company: Company) -> None:
    address = MqttAddress("h", 8883, tls=True, ca=str(company.ca), cert=str(company.issue("pi")))
    assert resolve_broker(format_url(address), None)[1] == "pi"
    assert resolve_broker(format_url(address), "other")[1] == "other"
    odd = replace(address, cert=str(company.issue("no agent", file="odd")))
    assert resolve_broker(format_url(odd), None)[1] is None


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"crl": ""}, "broker.ca needs broker.crl, too"),
        ({"ca": ""}, "broker.certificate is for another authority: set broker.ca"),
        ({"tls": False}, "add --tls"),
        ({"url": "mqtts://h"}, "a broker that the run starts"),
        ({"ca": "none.pem"}, "broker.ca: expected a file, found none: none.pem"),
        ({"crl": "{ca}"}, "broker.crl: expected lists of revoked certificates in PEM"),
        ({"key": "{other}"}, "expected the key of .*broker.pem, found another"),
        ({"ca": "{foreign}"}, "expected a certificate that an authority in .* issued"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    tmp_path: Path, company: Company, changed: dict[str, object], problem: str
) -> None:
    files = {
        "{ca}": str(company.ca),
        "{other}": str(company.issue("other")),
        "{foreign}": str(Company(tmp_path / "foreign").ca),
    }
    given = {key: files.get(str(value), value) for key, value in changed.items()}
    wanted = Broker(**{**vars_of(settings(company, tmp_path)), **given})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=problem):
        read_outside_authority(wanted)


def vars_of(wanted: Broker) -> dict[str, object]:
    return {name: getattr(wanted, name) for name in wanted.__struct_fields__}


def test_a_list_that_expired_or_that_another_signed_is_refused(
    tmp_path: Path, company: Company
) -> None:
    wanted = settings(company, tmp_path)
    company.write_lists(timedelta(seconds=-1))
    with pytest.raises(ConfigError, match=r"crl.pem expired at .*current list"):
        read_outside_authority(wanted)
    company.crl.write_bytes(Company(tmp_path / "foreign").crl.read_bytes())
    with pytest.raises(ConfigError, match=r"expected a list that an authority in .* signed"):
        read_outside_authority(wanted)


def test_a_list_whose_issuer_cannot_be_read_is_not_used(
    tmp_path: Path, company: Company, caplog: pytest.LogCaptureFixture
) -> None:
    """An attacker may change a list on its way, and the signature is only checked after that."""
    found = read_outside_authority(settings(company, tmp_path))
    assert found is not None
    found.install(tmp_path / "copies", tmp_path / "last.pem")
    first = x509.load_pem_x509_crl(company.crl.read_bytes()).public_bytes(Encoding.DER)
    odd = base64.encodebytes(first.replace(b"devices", b"\xff" * 7))
    company.crl.write_bytes(b"-----BEGIN X509 CRL-----\n" + odd + b"-----END X509 CRL-----\n")
    assert found.refresh() == frozenset()
    assert "the earlier files of broker.ca stay in use" in caplog.text
    with pytest.raises(ConfigError, match=r"crl.pem"):
        read_outside_authority(settings(company, tmp_path))


@pytest.mark.parametrize("numbered", [True, False])
def test_an_older_list_does_not_replace_a_newer_one(
    tmp_path: Path, company: Company, caplog: pytest.LogCaptureFixture, numbered: bool
) -> None:
    """Someone may send an earlier list again, which is still valid, on its way from the company."""
    company.numbered = numbered
    wanted, serials = settings(company, tmp_path), list[int]()
    company.write_lists()
    found, earlier = read_outside_authority(wanted), company.crl.read_bytes()
    assert found is not None
    found.install(tmp_path / "copies", tmp_path / "last.pem")
    for name in ("pi", "pad"):
        company.revoke(path := company.issue(name))
        serials.append(x509.load_pem_x509_certificate(path.read_bytes()).serial_number)
    revoked = frozenset(f"{serial:x}" for serial in serials)
    assert found.refresh() == revoked
    company.crl.write_bytes(earlier)
    assert found.refresh() == revoked
    assert "not older than the one in use" in caplog.text
    assert "the earlier files of broker.ca stay in use" in caplog.text

    again = read_outside_authority(wanted)
    assert again is not None
    with pytest.raises(ConfigError, match=r"crl.pem: expected a list .* not older than the one"):
        again.install(tmp_path / "others", tmp_path / "last.pem")
    company.write_lists()
    assert found.refresh() == revoked
    again.refresh()
    again.install(tmp_path / "others", tmp_path / "last.pem")
    another = read_outside_authority(settings(Company(tmp_path / "another"), tmp_path))
    assert another is not None
    another.install(tmp_path / "others", tmp_path / "last.pem")
    company.crl.write_bytes(earlier)  # which the lists of another company do not make new
    replayed = read_outside_authority(wanted)
    assert replayed is not None
    with pytest.raises(ConfigError, match="not older than the one"):
        replayed.install(tmp_path / "others", tmp_path / "last.pem")


def test_a_list_that_was_used_before_must_not_be_missing(
    tmp_path: Path, company: Company, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it, what it revoked would be valid again, and then also with an older list."""
    found = read_outside_authority(wanted := settings(company, tmp_path))
    assert found is not None
    found.install(tmp_path / "copies", tmp_path / "last.pem")
    company.revoke(company.issue("pi"))
    revoked, whole = found.refresh(), company.crl.read_bytes()
    assert len(revoked) == 1
    end = b"-----END X509 CRL-----\n"
    company.crl.write_bytes(whole.split(end)[1] + end)  # that of the root
    assert found.refresh() == revoked
    assert "as before, found none" in caplog.text
    again = read_outside_authority(wanted)
    assert again is not None
    with pytest.raises(ConfigError, match=r"of CN=devices,O=Company, as before, .*last.pem"):
        again.install(tmp_path / "others", tmp_path / "last.pem")


def test_the_end_of_a_list_is_announced(
    tmp_path: Path, company: Company, caplog: pytest.LogCaptureFixture
) -> None:
    found = read_outside_authority(settings(company, tmp_path))
    assert found is not None
    found.warn_of_expiry(datetime.now(UTC))
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        found.warn_of_expiry(datetime.now(UTC) + timedelta(days=28))
        found.warn_of_expiry(datetime.now(UTC) + timedelta(days=28, minutes=1))
    told = [record.getMessage() for record in caplog.records]
    assert ["broker.pem expires at" in told[0], "crl.pem expires at" in told[1]] == [True, True]
    assert len(told) == 2, "not again within an hour"


@pytest.mark.broker
@needs_mosquitto
def test_a_list_that_expires_soon_after_the_start_is_announced(
    tmp_path: Path, company: Company, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = settings(company, tmp_path)
    company.write_lists(timedelta(minutes=5))
    with open_broker_access(wanted, tmp_path / "r", lambda text: None):
        eventually(lambda: "crl.pem expires at" in caplog.text)


def test_the_name_of_the_coordinator_cannot_be_guessed(tmp_path: Path, company: Company) -> None:
    """The company's authority could certify it for anybody."""
    with closing(open_authority(settings(company, tmp_path))) as authority:
        name = authority.user
        assert name != COORDINATOR
    with closing(open_authority(Broker(pki=str(tmp_path / "pki")))) as authority:
        assert authority.user == name, "also for commands that do not know the settings"


@pytest.mark.processes
@pytest.mark.broker
@pytest.mark.slow
@needs_mosquitto
def test_a_fleet_trains_with_certificates_of_a_company(
    tmp_path: Path, company: Company, start: Start
) -> None:
    wanted = settings(company, tmp_path)
    register(tmp_path, "pi")
    given = {name: getattr(wanted, name) for name in ("port", "pki", "ca", "certificate", "crl")}
    words = [
        word
        for key, value in {**given, "key": wanted.key}.items()
        for word in ("--set", f"broker.{key}={value}")
    ]
    words += ["--set", "train.steps=1", "--set", "evaluate.between=false"]
    run = ["--method", "fedavg", "--model", "mlp-small", "--min-agents", "1", "--rounds", "2"]
    coordinator = start(*START, "start", "--tls", "--name", "r", *run, *words)
    assert wait_for_words(coordinator, tmp_path / "0.out", "coordinator register NAME")
    url = format_url(locate(wanted, company, company.issue("pi")))
    agent = start(*AGENT, "join", "--broker", url, "--spool", "spool", "--format", "json")
    ended = result(agent)
    assert (ended["agent"], ended["updates"]) == ("pi", 2)
    assert coordinator.wait(PATIENCE) == 0
