"""What a device was given: found again, chosen from, renewed in time, and tokens from elsewhere."""

from __future__ import annotations

import os
import ssl
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

from coordinator.access.authority import Authority
from coordinator.access.enrolment_server import EnrolmentServer
from edge_agent.access import admission, enrol
from edge_agent.access.admission import admitted, read_token, renew_when_due
from edge_agent.access.credentials import Credentials, folder_of, stored
from federated.errors import ConfigError, LinkError, UsageError
from federated.wire.address import parse_address
from federated.wire.enrolment_token import Token


def test_later_the_brokers_address_is_enough(token: Token, device: Path) -> None:
    first, name = admitted(None, None, str(token))
    assert name == token.name
    assert admitted("mqtts://localhost", None) == (first, token.name)
    assert admitted("mqtts://elsewhere", None) == ("mqtts://elsewhere:8883", None)
    assert admitted("localhost", None) == ("localhost", None)
    assert admitted("mqtts://me:x@localhost", None) == ("mqtts://me:x@localhost:8883", "me")
    assert first is not None
    assert parse_address(first).cert == str(stored()[0].pem)
    stored()[0].pem.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod go="):
        admitted("mqtts://localhost", None)


def test_several_enrolments_of_one_device_want_a_choice(
    authority: Authority, office: EnrolmentServer, device: Path
) -> None:
    for name in ("one", "two"):
        admitted(None, None, str(authority.invite(name, "localhost", office.port, 60)))
    with pytest.raises(
        UsageError, match="enrolled at mqtts://localhost:8883 as one, two: choose one with --name"
    ):
        admitted("mqtts://localhost", None)
    assert admitted("mqtts://localhost", "two")[1] == "two"


def test_a_user_is_the_agent_of_that_name() -> None:
    assert admitted("mqtt://pi:x@host", None) == ("mqtt://pi:x@host", "pi")
    assert admitted("mqtt://pi:x@host", "other")[1] == "other"
    assert admitted("mqtt://all:x@host", None)[1] is None


def shortened(made: Credentials, authority: Authority, life: timedelta) -> None:
    """Puts a certificate of another life in the place of a device's."""
    key = enrol.pending(made.folder / "key.pem")
    shown = enrol.certificate(made.pem).public_bytes(enrol.serialization.Encoding.DER)
    made.pem.write_bytes(
        authority.renew(shown, enrol.request(made.name, key), life=life).encode()
        + enrol.text_of(key)
    )
    made.pem.chmod(0o600)


def test_a_certificate_is_renewed_with_another_key_in_its_last_third_and_not_before(
    token: Token, authority: Authority, device: Path
) -> None:
    made = enrol.enrol(token, folder_of(token))
    assert not renew_when_due(made)
    shortened(made, authority, timedelta(minutes=4))  # of fourteen: it is backdated by ten
    before = made.pem.read_bytes()
    assert renew_when_due(made)
    assert made.pem.read_bytes() != before
    assert enrol.left(made.pem) > timedelta(days=89).total_seconds()
    assert (
        enrol.certificate(made.pem).public_key()
        != enrol.x509.load_pem_x509_certificate(before).public_key()
    )
    ssl.create_default_context().load_cert_chain(made.pem)


def test_a_revoked_certificate_is_not_renewed_and_the_old_one_stays(
    token: Token, authority: Authority, device: Path
) -> None:
    made = enrol.enrol(token, folder_of(token))
    shortened(made, authority, timedelta(minutes=4))
    before = made.pem.read_bytes()
    authority.revoke(made.name)
    with pytest.raises(LinkError, match=f"certificate of '{made.name}' was revoked"):
        renew_when_due(made)
    assert made.pem.read_bytes() == before
    fresh = authority.invite(made.name, token.host, token.port, 60)
    admitted(None, None, str(fresh))  # a new token brings it back
    assert made.pem.read_bytes() != before


def test_a_certificate_that_is_over_is_told_to_enrol_anew(
    token: Token, authority: Authority, device: Path
) -> None:
    made = enrol.enrol(token, folder_of(token))
    shortened(made, authority, timedelta(seconds=-1))
    with pytest.raises(
        LinkError,
        match=r"only one that is good can be renewed: if this device's clock is right .* ask for a "
        r"token",
    ):
        renew_when_due(made)


def test_a_token_comes_from_a_flag_or_a_file_or_standard_input(
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
        monkeypatch.setattr(admission.sys, "stdin", typed)
        assert read_token(None, Path("-")) == "typed\n"
    with pytest.raises(UsageError, match="give one of them"):
        read_token("x", Path("-"))
    with pytest.raises(ConfigError, match=quote("none", safe="")):
        read_token(None, tmp_path / "none")
