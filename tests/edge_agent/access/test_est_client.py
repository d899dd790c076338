"""Certificates of a company's authority by EST, from a small server over TLS."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509

from edge_agent.cli.main import main
from tests.support.est_server import EstServer, serve_est
from tests.support.outside_authority import Company


@pytest.fixture
def company(tmp_path: Path) -> Company:
    return Company(tmp_path / "company")


@pytest.fixture
def server(company: Company) -> Iterator[EstServer]:
    with serve_est(company) as made:
        yield made


class Device:
    """A device that asks the server."""

    def __init__(self, folder: Path, server: EstServer) -> None:
        self.folder, self.server = folder / "certificate", server
        self.trust, self.secret = server.company.ca, folder / "password"
        self.secret.write_text("secret\n")

    def ask(self, *more: str, user: str = "pi", url: str = "") -> Result:
        words = [url or self.server.url, "--name", "pi-7", "--out", str(self.folder)]
        words += ["--ca", str(self.trust), "--format", "json", *more]
        if user:
            words += ["--user", user, "--password-file", str(self.secret)]
        return CliRunner().invoke(main, ["certificate", *words])

    def read(self) -> list[x509.Certificate]:
        return load((self.folder / "agent.pem").read_bytes())


def load(pem: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(pem)


@pytest.fixture
def device(tmp_path: Path, server: EstServer) -> Device:
    return Device(tmp_path, server)


def test_a_certificate_is_issued_kept_and_renewed_with_itself(
    device: Device, server: EstServer, company: Company
) -> None:
    done = device.ask()
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["new"] is True
    first = device.read()
    names = [one.subject.rfc4514_string() for one in first]
    assert names == ["CN=pi-7", "CN=devices,O=Company"], "the root is not sent to brokers"
    trusted = [path.read_bytes() for path in (device.folder / "ca.pem", company.ca)]
    assert set(load(trusted[0])) == set(load(trusted[1]))
    assert (device.folder / "agent.pem").stat().st_mode & 0o777 == 0o600
    assert not (device.folder / "key.pem").exists()

    assert json.loads(device.ask(user="").stdout)["new"] is False
    assert device.read() == first
    done = device.ask("--force", user="")
    assert json.loads(done.stdout)["new"] is True
    assert [operation for operation, _ in server.requests] == ["simpleenroll", "simplereenroll"]
    assert server.requests[0][1] != server.requests[1][1], "a renewed certificate has a new key"
    assert device.read()[0].serial_number != first[0].serial_number


def test_no_other_user_can_read_the_key_at_any_time(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder exists, and other users may open it."""
    device.folder.mkdir(mode=0o755)
    modes, sync = dict[str, int](), os.fsync

    def note(handle: int) -> None:
        for path in device.folder.iterdir():
            modes[path.name] = path.stat().st_mode & 0o777
        sync(handle)

    monkeypatch.setattr(os, "fsync", note)  # while each file is written
    assert device.ask().exit_code == 0
    keys = {name: mode for name, mode in modes.items() if name.startswith(("key", "agent"))}
    assert set(keys.values()) == {0o600}, keys


def test_a_request_that_waits_for_approval_keeps_its_key(device: Device, server: EstServer) -> None:
    server.pending = 1
    done = device.ask()
    assert done.exit_code == 5
    assert "has to approve this device: repeat the command in 60 s" in done.output
    assert not (device.folder / "agent.pem").exists()
    assert device.ask().exit_code == 0
    assert server.requests[0] == server.requests[1]


def test_a_refused_device_is_told_why(
    device: Device, server: EstServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = device.ask(user="other")
    assert (done.exit_code, "check --user" in done.output) == (5, True), done.output
    done = device.ask(url=server.url.removesuffix("est") + "other")
    assert (done.exit_code, "found 404: check the address" in done.output) == (5, True)
    device.trust = Company(tmp_path / "foreign").ca
    done = device.ask()
    assert (done.exit_code, "with --ca" in done.output) == (5, True), done.output
    assert device.ask(url="http://localhost/est").exit_code == 2
    assert len(server.requests) == 1, "a server that is not trusted gets no password"


def test_a_certificate_of_another_authority_or_name_is_refused(
    device: Device, server: EstServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = Company(tmp_path / "foreign")
    monkeypatch.setattr(server.company, "certify", foreign.certify)
    done = device.ask()
    assert done.exit_code == 5
    assert "an authority of cacerts issued" in done.output
    stranger = x509.load_pem_x509_certificate(foreign.issue("pi-8").read_bytes())
    monkeypatch.setattr(server.company, "certify", lambda request: stranger)
    done = device.ask()
    assert (done.exit_code, "for this device's key" in done.output) == (5, True)
    assert not (device.folder / "agent.pem").exists()
