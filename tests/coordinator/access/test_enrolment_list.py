"""A list of devices is enrolled as a whole, or an error names the line and nothing changes."""

from __future__ import annotations

import csv
import json
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.access.certificate_authority import Authority
from coordinator.access.enrolment_list import read_devices
from coordinator.cli.main import main
from edge_agent.access.enrolment import sign_request
from federated.errors import ConfigError, Refused
from federated.wire.enrolment_token import parse_token
from tests.support.certificate_authority import member

HOUR = 3600.0
KEY = ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Authority]:
    with closing(Authority(tmp_path / "pki")) as made:
        yield made


def enroll(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(
        main, ["enroll", *words, "--pki", str(folder / "pki"), "--host", "localhost"]
    )


def enroll_list(folder: Path, text: str, out: str = "tokens.csv", *flags: str) -> Result:
    (folder / "names.csv").write_text(text)
    return enroll(folder, "--from", str(folder / "names.csv"), "--out", str(folder / out), *flags)


def test_the_tokens_of_a_list_enrol_its_devices_until_their_time(
    tmp_path: Path, authority: Authority
) -> None:
    result = enroll_list(tmp_path, "name,groups,valid\npi-1,eu canary,2d\n\npi-2,,\n")
    assert (result.exit_code, result.stdout) == (0, f"wrote 2 tokens to {tmp_path}/tokens.csv\n")
    file = tmp_path / "tokens.csv"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["name"] for row in rows] == ["pi-1", "pi-2"]
    assert authority.registry.list_groups() == {"pi-1": ("canary", "eu")}
    secrets = [parse_token(row["token"]).secret for row in rows]
    asked, late = sign_request("pi-2", KEY), time.time() + 2 * HOUR
    with pytest.raises(Refused, match="expired"):
        authority.enrol(secrets[1], asked, late)
    authority.enrol(secrets[1], asked)
    authority.enrol(secrets[0], sign_request("pi-1", KEY), late)


def test_a_file_named_json_holds_json(tmp_path: Path) -> None:
    assert enroll_list(tmp_path, "name\na\n", "tokens.json").exit_code == 0
    (row,) = json.loads((tmp_path / "tokens.json").read_text())
    assert (row["name"], parse_token(row["token"]).host) == ("a", "localhost")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: expected the column name, .* found nothing"),
        ("name,site\na,b\n", "line 1: .*optionally groups, runs and valid, found name, site"),
        ("name\n", "a line for each device, found only"),
        ("name\na\nall\n", "line 3, column name: .*expected .*found 'all'"),
        ("name\na\n\nb/c\n", "line 4, column name: .*found 'b/c'"),
        ("name\na\nb\na\n", "line 4, column name: expected each device once, found 'a' .*line 2"),
        ("name,valid\na,1h\nb,soon\n", "line 3, column valid: .*90s, 30m.*found 'soon'"),
        ("name,groups\na,eu x/y\n", "line 2, column groups: .*found 'x/y'"),
        ("name,valid\na\n", "line 2: expected 2 values .name, valid., found 1"),
        ('name\n"a\n', "expected CSV"),
        (b"name\na\n\xff\n", "line 3: expected UTF-8, found byte 0xff"),
    ],
)
def test_an_error_names_the_line_and_the_column(
    tmp_path: Path, text: str | bytes, problem: str
) -> None:
    file = tmp_path / "names.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=problem):
        read_devices(file, HOUR)


def test_a_device_with_a_certificate_keeps_all_of_a_list_from_enrolling(
    tmp_path: Path, authority: Authority
) -> None:
    member(authority, "b", tmp_path)
    earlier = authority.invite("a", "localhost", 1, HOUR)
    result = enroll_list(tmp_path, "name,groups\na,eu\nb,eu\n")
    assert result.exit_code == 3
    assert "names.csv, line 3, column name: expected a new device, found one" in result.stderr
    assert "add --skip-enrolled" in result.stderr
    assert not (tmp_path / "tokens.csv").exists()
    assert authority.registry.list_groups() == {}
    authority.enrol(earlier.secret, sign_request("a", KEY))  # its token is still valid


def test_a_longer_list_enrols_only_its_new_devices(tmp_path: Path, authority: Authority) -> None:
    """A revoked device gets no token by the way."""
    for name in ("b", "lost"):
        member(authority, name, tmp_path)
    authority.revoke_all(["lost"])
    text, file = "name,groups\na,eu\nb,eu\nlost,\n", tmp_path / "tokens.csv"
    result = enroll_list(tmp_path, text, file.name, "--skip-enrolled")
    assert (result.exit_code, "skipped 2 of 3 devices" in result.stderr) == (0, True)
    assert [row["name"] for row in csv.DictReader(file.read_text().splitlines())] == ["a"]
    assert authority.registry.list_groups() == {"a": ("eu",)}
    result = enroll_list(tmp_path, "name\nb\n", "more.csv", "--skip-enrolled")
    assert (result.exit_code, result.stdout) == (0, "wrote no tokens: no device is new\n")
    assert not (tmp_path / "more.csv").exists()


def test_an_existing_file_is_kept(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "tokens.csv").write_text("mine")
    result = enroll_list(tmp_path, "name\na\n")
    assert (result.exit_code, "the file exists" in result.stderr) == (3, True)
    assert (tmp_path / "tokens.csv").read_text() == "mine"


@pytest.mark.parametrize(
    "words",
    [(), ("a", "--out", "f"), ("--from", "f"), ("a", "--group", "/"), ("a", "--skip-enrolled")],
)
def test_flags_that_do_not_fit_together_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert enroll(tmp_path, *words).exit_code == 2
    assert not (tmp_path / "pki").exists()


def test_enrolling_says_where_the_device_will_enrol(tmp_path: Path, authority: Authority) -> None:
    """A token of an address at which the coordinator does not listen is useless."""
    done = enroll(tmp_path, "a", "--port", "9000")
    assert "enrol at localhost:9000" in done.stderr
    assert "--host" in done.stderr


def test_one_device_is_put_into_groups(tmp_path: Path, authority: Authority) -> None:
    assert enroll(tmp_path, "a", "--group", "eu", "--group", "canary").exit_code == 0
    assert authority.registry.list_groups() == {"a": ("canary", "eu")}


def test_ten_thousand_tokens_take_less_than_a_minute(tmp_path: Path) -> None:
    begun = time.monotonic()
    for _ in range(2):  # again, which withdraws the tokens of the first time
        result = enroll_list(tmp_path, "name\n" + "".join(f"pi-{i}\n" for i in range(10_000)))
        assert result.exit_code == 0
        assert time.monotonic() - begun < 60
        (tmp_path / "tokens.csv").unlink()
