"""The audit log names who asked for what, keeps every row, and shows changed and missing ones."""

from __future__ import annotations

import json
import os
import pwd
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coordinator import audit_log
from coordinator.access.certificate_authority import Authority
from coordinator.audit_log import Actor
from coordinator.cli.main import main
from federated.errors import StoreError
from federated.system import users
from tests.support.certificate_authority import member

ANN = Actor("ann", "operator", "web page, from 192.0.2.7")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with three rows."""
    path = tmp_path / "base.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        audit_log.add(database, ANN, "enroll", ["pi-1", "pi-2"])
    audit_log.record(path, None, "pause")
    return path


def damage(path: Path, change: str) -> list[str]:
    """Change a log as a program does that ignores its triggers, and return what is found."""
    with closing(sqlite3.connect(path)) as database, database:
        for trigger in ("UPDATE", "DELETE"):
            database.execute(f"DROP TRIGGER audit_without_{trigger}")
        database.execute(change)
    return audit_log.read(path)[1]


def run(folder: Path, *words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [*words, "--pki", str(folder / "pki")])
    assert result.exit_code == code, result.output
    return result


def test_a_row_names_who_asked_for_what_from_where(log: Path) -> None:
    rows, damaged = audit_log.read(log)
    assert damaged == []
    assert [(row.what, row.about) for row in rows] == [
        ("enroll", "pi-1"),
        ("enroll", "pi-2"),
        ("pause", ""),
    ]
    assert (rows[0].who, rows[0].role, rows[0].place) == ("ann", "operator", ANN.place)
    assert (rows[2].who, rows[2].role) == (users.find_user_name(), "")


@pytest.mark.parametrize("change", ["UPDATE audit SET who = 'bob'", "DELETE FROM audit"])
def test_rows_are_only_added(log: Path, change: str) -> None:
    with (
        closing(sqlite3.connect(log)) as database,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        database.execute(change)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("UPDATE audit SET who = 'bob' WHERE number = 2", "audit row 2"),
        ("DELETE FROM audit WHERE number = 1", "audit rows 1 to 1 are missing"),
        ("DELETE FROM audit WHERE number > 1", "audit rows 2 to 3 are missing"),
        ("UPDATE audit SET digest = 'x' WHERE number = 3", "audit row 3"),
    ],
)
def test_a_changed_or_missing_row_is_found(log: Path, change: str, found: str) -> None:
    assert damage(log, change) == [found]


def test_a_row_is_added_only_with_what_it_records(log: Path) -> None:
    with closing(sqlite3.connect(log)) as database:
        audit_log.add(database, ANN, "stop")
        database.rollback()  # as after an error
    assert [row.what for row in audit_log.read(log)[0]] == ["enroll", "enroll", "pause"]


def test_a_log_is_not_created_by_reading_or_for_a_missing_database(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old")) as database:
        database.execute("CREATE TABLE other (x)")
    assert audit_log.read(tmp_path / "old") == ([], [])
    with pytest.raises(StoreError, match="cannot record 'stop'"):
        audit_log.record(tmp_path / "none", None, "stop")
    assert not (tmp_path / "none").exists()


def test_the_user_who_logged_in_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = pwd.getpwuid(os.geteuid()).pw_name
    other = next(one for one in pwd.getpwall() if one.pw_uid != os.geteuid())
    monkeypatch.setattr(users, "LOGIN", tmp_path / "loginuid")
    assert users.find_user_name() == own
    for login, expected in (
        (users.NOBODY, own),
        (os.geteuid(), own),
        (other.pw_uid, f"{pwd.getpwuid(other.pw_uid).pw_name} as {own}"),
    ):
        (tmp_path / "loginuid").write_text(str(login))
        assert users.find_user_name() == expected


def test_the_commands_of_the_authority_are_shown(tmp_path: Path) -> None:
    runs = ("--runs", str(tmp_path))
    run(tmp_path, "enroll", "a", "--group", "eu")
    with closing(Authority(tmp_path / "pki")) as authority:
        member(authority, "b", tmp_path)
    run(tmp_path, "group", "eu", "b")
    assert run(tmp_path, "group", "eu").stdout == "a\nb\n"
    run(tmp_path, "group", "eu", "b", "--off")
    listed = json.loads(run(tmp_path, "authority", "--format", "json").stdout)["agents"]
    assert [(one["name"], one["groups"]) for one in listed] == [("b", [])]
    run(tmp_path, "group", "eu", "nobody", code=2)
    run(tmp_path, "revoke", "--group", "us", code=2)
    run(tmp_path, "revoke", "b", "--group", "eu")
    rows = [
        json.loads(line)
        for line in run(tmp_path, "audit", *runs, "--format", "json").stdout.splitlines()
    ]
    assert [(row["log"], row["what"], row["about"]) for row in rows] == [
        ("authority", "enroll", "a"),
        ("authority", "add to eu", "a"),
        ("authority", "enroll", "b"),
        ("authority", "add to eu", "b"),
        ("authority", "remove from eu", "b"),
        ("authority", "revoke", "b"),
        ("authority", "revoke", "a"),
    ]
    damage(tmp_path / "pki" / "registry.sqlite", "DELETE FROM audit WHERE number = 2")
    result = run(tmp_path, "audit", *runs, code=7)
    assert "authority: revoke a  by " in result.stdout
    assert "audit rows 2 to 2 are missing" in result.stderr


def test_the_help_and_the_documentation_name_what_is_recorded() -> None:
    """Whatever a command passes to the log by a literal name."""
    root = Path(audit_log.__file__).parent
    pattern = r'(?:\.record|audit_log\.add)\((?:self\._base|[\w./ ]+), [^"()]*f?"([a-z]+)'
    sources = [path.read_text() for path in root.rglob("*.py")]
    found = {word for text in sources for word in re.findall(pattern, text)}
    found |= {"start", "resume", "pause", "stop", "pin", "release", "promote", "roll", "upgrade"}
    assert {"enroll", "register", "revoke", "allow"} <= found
    shown = CliRunner().invoke(main, ["audit", "--help"]).output
    text = (root.parent / "docs" / "operations.md").read_text()
    section = text.partition("## Audit log")[2].partition("- **who:**")[0]
    words = set(re.findall("[a-z]+", shown)), set(re.findall("[a-z]+", section))
    # the help names these by their subjects
    subjects = {"allow": "claims", "use": "claims", "grant": "rights", "add": "groups"}
    assert not {subjects.get(one, one) for one in found} - words[0]
    subjects = {"grant": "right", "add": "group"}
    assert not {subjects.get(one, one) for one in found} - words[1]
