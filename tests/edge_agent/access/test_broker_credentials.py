"""Selecting an enrolment, renewing its certificate, and reading tokens."""

from __future__ import annotations

import json
import os
import ssl
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from coordinator.access.certificate_authority import Authority
from coordinator.access.enrolment_server import EnrolmentServer
from edge_agent.access import broker_credentials, enrolment
from edge_agent.access.agent_name import read_serial
from edge_agent.access.broker_credentials import read_token, renew_if_due, resolve_broker
from edge_agent.access.enrolment_files import Credentials, load_credentials, locate_enrolment
from edge_agent.cli.main import main
from federated.errors import ConfigError, LinkError, UsageError
from federated.wire.enrolment_token import Token
from federated.wire.mqtt_address import parse_mqtt_address


def test_an_enrolled_device_needs_only_the_brokers_address(token: Token, device: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        first, name = resolve_broker(None, None, str(token), say=said.append)
    (line,) = said
    assert line.startswith(f"enrolled as '{token.name}'; the certificate is valid until 20")
    assert name == token.name
    assert resolve_broker("mqtts://localhost", None) == (first, token.name)
    assert resolve_broker("mqtts://elsewhere", None) == ("mqtts://elsewhere:8883", None)
    assert resolve_broker("localhost", None) == ("localhost", None)
    assert resolve_broker("mqtts://me:x@localhost", None) == ("mqtts://me:x@localhost:8883", "me")
    assert first is not None
    assert parse_mqtt_address(first).cert == str(load_credentials()[0].pem)
    load_credentials()[0].pem.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod go="):
        resolve_broker("mqtts://localhost", None)


def test_a_device_that_only_infers_enrols_without_joining(token: Token, device: Path) -> None:
    ended = CliRunner().invoke(main, ["join", "--enroll-only", "--token", str(token)])
    assert (ended.exit_code, ended.output) == (0, f"this device is enrolled as '{token.name}'\n")
    assert [one.name for one in load_credentials()] == [token.name]
    again = ["join", "--enroll-only", "--token", str(token), "--format", "json"]
    assert json.loads(CliRunner().invoke(main, again).stdout) == {"agent": token.name}


@pytest.mark.parametrize(
    ("broker", "exit_code", "match"),
    [
        ("mqqt://host", 2, "unknown broker address scheme 'mqqt'; did you mean mqtt"),
        ("mqtts://host?ca=nosuch.pem", 3, "the CA file nosuch.pem does not exist"),
        ("mqtts://host?cert=nosuch.pem", 3, "the certificate file nosuch.pem does not exist"),
    ],
)
@pytest.mark.parametrize("command", ["join", "finetune", "infer"])
def test_a_wrong_broker_is_refused_before_the_data_are_loaded(
    command: str, broker: str, exit_code: int, match: str, tmp_path: Path
) -> None:
    words = [command, "--broker", broker, "--data", str(tmp_path / "nosuch.npz")]
    out = ["--out", str(tmp_path / "out")] if command == "finetune" else []
    ended = CliRunner().invoke(main, [*words, *out])
    assert (ended.exit_code, match in ended.output) == (exit_code, True), ended.output


def test_a_wrong_broker_is_refused_before_a_token_is_used(token: Token, device: Path) -> None:
    with pytest.raises(UsageError, match="scheme"):
        resolve_broker("mqqt://host", None, str(token))
    assert load_credentials() == []


@pytest.mark.slow
def test_a_dry_run_does_not_use_up_the_token(token: Token, device: Path) -> None:
    words = ["join", "--dry-run", "--token", str(token), "--limit-cpus", "1", "--format", "json"]
    shown = CliRunner().invoke(main, words)
    assert "the token was not used" in shown.stderr
    assert json.loads(shown.stdout)["profile"]["agent"] == token.name
    assert load_credentials() == []
    assert resolve_broker(None, None, str(token))[0] is not None, "it still enrols"


def test_enrolling_and_a_dry_run_cannot_be_combined(token: Token, device: Path) -> None:
    words = ["join", "--dry-run", "--enroll-only", "--token", str(token)]
    assert CliRunner().invoke(main, words).exit_code == 2
    assert load_credentials() == []


def test_without_permission_to_enrol_a_token_only_tells_the_name(
    token: Token, device: Path
) -> None:
    assert resolve_broker(None, None, str(token), enrol=False) == (None, token.name)
    with pytest.raises(UsageError, match=f"expected the token's name '{token.name}'"):
        resolve_broker(None, "other", str(token), enrol=False)
    assert load_credentials() == []
    enrolled = resolve_broker(None, None, str(token))
    assert resolve_broker(None, None, str(token), enrol=False) == enrolled


def test_enrolling_needs_a_token() -> None:
    ended = CliRunner().invoke(main, ["join", "--enroll-only", "--broker", "mqtts://host"])
    assert ended.exit_code == 2
    assert "--enroll-only needs a token" in ended.output


def test_several_enrolments_at_one_broker_require_a_name(
    authority: Authority, enrolment: EnrolmentServer, device: Path
) -> None:
    for name in ("one", "two"):
        resolve_broker(None, None, str(authority.invite(name, "localhost", enrolment.port, 60)))
    with pytest.raises(UsageError, match=r"enrolled at mqtts://localhost:8883 .*one, two.* --name"):
        resolve_broker("mqtts://localhost", None)
    assert resolve_broker("mqtts://localhost", "two")[1] == "two"


def test_the_brokers_user_is_the_default_name() -> None:
    assert resolve_broker("mqtt://pi:x@host", None) == ("mqtt://pi:x@host", "pi")
    assert resolve_broker("mqtt://pi:x@host", "other")[1] == "other"
    assert resolve_broker("mqtt://all:x@host", None)[1] is None


def replace_certificate(made: Credentials, authority: Authority, life: timedelta) -> None:
    """Replace a device's certificate with one of this lifetime."""
    key = enrolment.load_or_create_key(made.folder / "key.pem")
    shown = enrolment.load_certificate(made.pem).public_bytes(enrolment.serialization.Encoding.DER)
    made.pem.write_bytes(
        authority.renew(shown, enrolment.sign_request(made.name, key), life=life).encode()
        + enrolment.encode_key(key)
    )
    made.pem.chmod(0o600)


def test_a_certificate_is_renewed_with_a_new_key_in_the_last_third_of_its_life_only(
    token: Token, authority: Authority, device: Path
) -> None:
    made = enrolment.enrol(token, locate_enrolment(token))
    assert not renew_if_due(made)
    replace_certificate(made, authority, timedelta(minutes=4))  # of 14: backdated by 10
    before = made.pem.read_bytes()
    assert renew_if_due(made)
    assert made.pem.read_bytes() != before
    assert enrolment.count_seconds_left(made.pem) > timedelta(days=89).total_seconds()
    assert (
        enrolment.load_certificate(made.pem).public_key()
        != enrolment.x509.load_pem_x509_certificate(before).public_key()
    )
    ssl.create_default_context().load_cert_chain(made.pem)


def test_a_revoked_certificate_is_not_renewed_and_the_old_one_stays(
    token: Token, authority: Authority, device: Path
) -> None:
    made = enrolment.enrol(token, locate_enrolment(token))
    replace_certificate(made, authority, timedelta(minutes=4))
    before = made.pem.read_bytes()
    authority.revoke(made.name)
    with pytest.raises(LinkError, match=f"certificate of '{made.name}' was revoked"):
        renew_if_due(made)
    assert made.pem.read_bytes() == before
    fresh = authority.invite(made.name, token.host, token.port, 60)
    resolve_broker(None, None, str(fresh))  # a new token brings it back
    assert made.pem.read_bytes() != before


def test_an_expired_certificate_requires_a_new_token(
    token: Token, authority: Authority, device: Path
) -> None:
    made = enrolment.enrol(token, locate_enrolment(token))
    replace_certificate(made, authority, timedelta(seconds=-1))
    with pytest.raises(
        LinkError,
        match=r"expired .* clock is right.*coordinator enroll",
    ):
        renew_if_due(made)


def test_a_token_is_read_from_a_flag_a_file_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t").write_text("token\n")
    assert read_token("x", None) == "x"
    assert read_token(None, tmp_path / "t") == "token\n"
    assert read_token(None, None) is None
    read, write = os.pipe()
    os.write(write, b"typed\n")
    os.close(write)
    with os.fdopen(read) as typed:
        monkeypatch.setattr(broker_credentials.sys, "stdin", typed)
        assert read_token(None, Path("-")) == "typed\n"
    with pytest.raises(UsageError, match="use one of them"):
        read_token("x", Path("-"))
    with pytest.raises(ConfigError, match=quote("none", safe="")):
        read_token(None, tmp_path / "none")


def test_a_claim_takes_its_serial_number_from_the_flag_or_the_board(tmp_path: Path) -> None:
    assert read_token("x\n", None, "1000a") == "x#1000a"
    with pytest.raises(UsageError, match="--serial is for a claim"):
        read_token(None, None, "1000a")
    board = tmp_path / "proc/device-tree"
    board.mkdir(parents=True)
    (board / "serial-number").write_bytes(b"10000000abcdef12\0")
    assert read_serial(tmp_path) == "10000000abcdef12"
    (board / "serial-number").unlink()
    with pytest.raises(UsageError, match="set it with --serial; this board has none"):
        read_serial(tmp_path)
