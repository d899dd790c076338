"""A batch of devices claims certificates with one token: each device in the list once, in time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator import audit_log
from coordinator.access.broker_setup import open_broker_access
from coordinator.access.certificate_authority import Authority
from coordinator.access.claims import Terms, add_claim, claim, list_claimed, revoke_claim
from coordinator.access.enrolment_list import Device
from coordinator.access.run_rights import list_excluded
from coordinator.cli.main import main
from coordinator.settings.service_tables import Broker
from edge_agent.access.broker_credentials import resolve_broker
from federated.certificate_request import sign_request
from federated.errors import ConfigError, LinkError, Refused, UsageError
from federated.wire.enrolment_token import Token, parse_token
from federated.wire.links.catalogue import open_link
from tests.support.brokers import needs_mosquitto
from tests.support.certificate_authority import member

KEY, OTHER = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
HOUR = 3600.0
LIST = [
    Device("pi-1", HOUR, ("eu",), ("kitchen",), serial="1000a"),
    Device("pi-2", HOUR, serial="1000b"),
]


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Authority]:
    with closing(Authority(tmp_path / "pki")) as made:
        yield made


@pytest.fixture
def token(authority: Authority) -> Token:
    return add_claim(authority, Terms("summer", HOUR, 2), LIST, ("localhost", 8884))


def ask(
    authority: Authority,
    token: Token,
    serial: str,
    key: ec.EllipticCurvePrivateKey = KEY,
    now: float | None = None,
) -> str:
    return claim(authority, token.secret, sign_request(serial, key), "enrolment, 1.2.3.4", now)


def read_name(pem: str) -> str:
    return x509.load_pem_x509_certificate(pem.encode()).subject.rfc4514_string()


def test_a_device_gets_the_name_and_the_rights_of_its_line(
    authority: Authority, token: Token
) -> None:
    assert read_name(ask(authority, token, "1000a")) == "CN=pi-1"
    assert authority.registry.list_groups() == {"pi-1": ("eu",)}
    assert list_excluded(authority.registry, "garden") == {"pi-1"}
    states = {one.name: one.at is not None for one in list_claimed(authority.registry, "summer")}
    assert states == {"pi-1": True, "pi-2": False}


def test_a_certificate_is_claimed_once_but_a_lost_answer_is_repeated(
    authority: Authority, token: Token
) -> None:
    first = ask(authority, token, "1000a")
    assert ask(authority, token, "1000a") == first
    with pytest.raises(Refused, match=r"claimed its certificate already.*revoke pi-1"):
        ask(authority, token, "1000a", OTHER)
    authority.revoke("pi-1")
    with pytest.raises(Refused, match="already"):
        ask(authority, token, "1000a")


def test_a_device_whose_certificate_expired_is_told_to_enrol(authority: Authority) -> None:
    years = 24 * 365 * HOUR
    token = add_claim(authority, Terms("long", 20 * years, 2), LIST, ("localhost", 8884))
    ask(authority, token, "1000a")
    with pytest.raises(Refused, match=r"'pi-1' expired: enrol .*coordinator enroll pi-1"):
        ask(authority, token, "1000a", now=time.time() + 19 * years)


def test_a_claim_ends_by_time_number_or_revocation(authority: Authority, token: Token) -> None:
    with pytest.raises(Refused, match="expired"):
        ask(authority, token, "1000a", now=time.time() + HOUR + 1)
    few = add_claim(
        authority, Terms("few", HOUR, 1), [Device(n, HOUR, serial=n) for n in "xy"], ("h", 1)
    )
    ask(authority, few, "x")
    with pytest.raises(Refused, match="used by 1 device"):
        ask(authority, few, "y")
    pki = Broker(pki=str(authority.folder))
    revoke_claim(pki, "summer")
    with pytest.raises(Refused, match="was revoked"):
        ask(authority, token, "1000a")
    with pytest.raises(UsageError, match="unknown claim 'winter'"):
        revoke_claim(pki, "winter")


def test_devices_beside_the_list_and_those_that_were_revoked_get_nothing(
    authority: Authority, token: Token
) -> None:
    with pytest.raises(Refused, match="no device with the serial number '1000c'"):
        ask(authority, token, "1000c")
    authority.revoke("pi-1")
    with pytest.raises(Refused, match="no device with the serial number '1000a'"):
        ask(authority, token, "1000a")


def test_a_device_that_enrolled_by_a_token_meanwhile_cannot_be_claimed(
    authority: Authority, token: Token, tmp_path: Path
) -> None:
    member(authority, "pi-1", tmp_path)
    with pytest.raises(Refused, match="already has a certificate"):
        ask(authority, token, "1000a")


def test_a_token_of_a_name_that_was_claimed_meanwhile_is_refused(
    authority: Authority, token: Token
) -> None:
    alone = authority.invite("pi-1", "localhost", 8884, HOUR)
    ask(authority, token, "1000a")
    with pytest.raises(Refused, match="already has a certificate"):
        authority.enrol(alone.secret, sign_request("pi-1", OTHER))
    assert len(authority.registry.list_valid("pi-1", time.time())) == 1


def test_the_secrets_of_claims_and_of_tokens_are_not_exchanged(
    authority: Authority, token: Token
) -> None:
    with pytest.raises(Refused, match="unknown token"):
        authority.enrol(token.secret, sign_request("pi-1", KEY))
    other = authority.invite("pi-9", "localhost", 8884, HOUR)
    with pytest.raises(Refused, match="unknown claim"):
        ask(authority, other, "1000a")


@pytest.mark.parametrize(
    ("terms", "devices", "problem"),
    [
        (Terms("summer", HOUR, 1), [Device("a", HOUR, serial="a")], "exists already"),
        (Terms("a/b", HOUR, 1), [Device("a", HOUR, serial="a")], "claim: expected .*found 'a/b'"),
        (
            Terms("new", HOUR, 2),
            [Device("a", HOUR, serial="s"), Device("b", HOUR, serial="s")],
            "found 's', which 'a' has",
        ),
        (Terms("new", HOUR, 1), [Device("old", HOUR, serial="s")], "already has a certificate"),
    ],
)
def test_a_claim_that_contradicts_what_exists_is_refused_as_a_whole(
    authority: Authority,
    token: Token,
    tmp_path: Path,
    terms: Terms,
    devices: list[Device],
    problem: str,
) -> None:
    member(authority, "old", tmp_path)
    before = authority.registry.list_names()
    with pytest.raises((ConfigError, UsageError), match=problem):
        add_claim(authority, terms, devices, ("localhost", 8884))
    assert authority.registry.list_names() == before


def test_the_audit_log_has_the_claim_its_uses_and_its_end(
    authority: Authority, token: Token
) -> None:
    ask(authority, token, "1000b")
    revoke_claim(Broker(pki=str(authority.folder)), "summer")
    rows, damage = audit_log.read(authority.folder / "registry.sqlite")
    assert not damage
    assert [(row.what, row.about) for row in rows] == [
        ("allow claim summer", "pi-1"),
        ("allow claim summer", "pi-2"),
        ("grant run kitchen", "pi-1"),
        ("add to eu", "pi-1"),
        ("use claim summer", "pi-2"),
        ("revoke claim", "summer"),
    ]
    assert (rows[4].who, rows[4].place) == ("device 1000b", "enrolment, 1.2.3.4")


def run(folder: Path, *words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["claim", *words, "--pki", str(folder / "pki")])
    assert result.exit_code == code, result.output
    return result


def make_batch(folder: Path, *words: str) -> Token:
    (folder / "names.csv").write_text("name,serial\npi-1,1000a\npi-2,1000b\n")
    words = "summer", "--from", str(folder / "names.csv"), "--host", "localhost", *words
    return parse_token(run(folder, *words).stdout)


def test_the_command_creates_shows_and_revokes_a_claim(tmp_path: Path) -> None:
    token = make_batch(tmp_path, "--most", "1")
    assert (token.name, token.claim) == ("summer", True)
    assert "0 of 2 devices, at most 1  valid until" in run(tmp_path).stdout
    shown = json.loads(run(tmp_path, "summer", "--format", "json").stdout)["devices"]
    assert [(one["name"], one["device"], one["at"]) for one in shown] == [
        ("pi-1", "1000a", None),
        ("pi-2", "1000b", None),
    ]
    run(tmp_path, "summer", "--off")
    assert "revoked" in run(tmp_path).stdout
    for words in (["summer", "--most", "5"], ["--valid", "9d"], ["summer", "--off", "--port", "1"]):
        with pytest.raises(AssertionError, match="is for a new claim: add --from FILE"):
            run(tmp_path, *words)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name,serial\npi-1,a b\n", "line 2, column serial: .*found 'a b'"),
        ("name,valid\npi-1,7d\n", "optionally serial, groups and runs, found name, valid"),
    ],
)
def test_an_error_in_the_list_names_its_place(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "names.csv").write_text(text)
    with pytest.raises(AssertionError, match=problem):
        run(tmp_path, "summer", "--from", str(tmp_path / "names.csv"))


@pytest.mark.broker
@needs_mosquitto
def test_flashed_devices_claim_their_certificates_and_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the enrolment server in its process, and mosquitto."""
    wanted = Broker(port=0, tls=True, enrol=0, pki=str(tmp_path / "pki"))
    with open_broker_access(wanted, tmp_path / "r", lambda text: None):
        token, names = str(make_batch(tmp_path)), []
        for serial in ("1000a", "1000b", "1000b"):
            monkeypatch.setenv("ESPALIER_STATE", str(tmp_path / f"device-{len(names)}"))
            try:
                broker, name = resolve_broker(None, None, f"{token}#{serial}")
            except LinkError as error:
                names.append(str(error))
                continue
            open_link(str(broker), f"r-{name}").close()
            again = resolve_broker(None, None, f"{token}#{serial}")
            assert again == (broker, name), "it starts again with its certificate"
            names.append(str(name))
    assert names[:2] == ["pi-1", "pi-2"]
    assert "claimed its certificate already" in names[2]
