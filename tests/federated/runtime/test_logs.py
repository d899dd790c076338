"""Logs as text and JSON: fields, hidden secrets, rotating files."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from edge_agent.cli.main import main
from edge_agent.infer.infer_command import load_client_token
from federated.errors import ConfigError
from federated.runtime import logs
from federated.wire.enrolment_token import FINGERPRINT, SECRET, Token, parse_token
from federated.wire.mqtt_address import parse_mqtt_address

log = logging.getLogger("coordinator.test")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = set(logs._secrets)
    yield
    root = logging.getLogger()
    for handler in logs._ours:
        root.removeHandler(handler)
        handler.close()
    logs._ours.clear()
    root.setLevel(logging.WARNING)
    for name in logs.OURS:
        logging.getLogger(name).setLevel(logging.NOTSET)
    logs._secrets.clear()
    logs._secrets.update(before)


def lines(path: Path) -> list[dict[str, object]]:
    return [
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        for line in path.read_text().splitlines()
    ]


def test_json_lines_have_time_level_logger_message_and_fields(tmp_path: Path) -> None:
    logs.configure(verbose=False, form="json", file=tmp_path / "log")
    log.info("round %d began", 3, extra={"event": "round began", "round": 3, "loss": float("nan")})
    (line,) = lines(tmp_path / "log")
    assert str(line.pop("time")).endswith("+00:00")
    assert line == {
        "level": "INFO",
        "logger": "coordinator.test",
        "message": "round 3 began",
        "event": "round began",
        "round": 3,
        "loss": None,
    }


def test_a_log_file_gets_everything_and_standard_error_gets_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(verbose=False, file=tmp_path / "log")
    log.info("quiet")
    log.warning("loud")
    logging.getLogger("someone.else").info("chatter")
    assert capsys.readouterr().err.strip().endswith("WARNING coordinator.test: loud")
    assert [line.rpartition(": ")[2] for line in (tmp_path / "log").read_text().splitlines()] == [
        "quiet",
        "loud",
    ]


def test_adding_a_log_file_keeps_verbose(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure(verbose=True)
    logs.configure()
    log.info("still said")
    assert "still said" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("secret", ["hunter22", 'pä"s/w@rd x', "back\\slash"])
def test_a_secret_shows_in_no_message_field_or_traceback(
    tmp_path: Path, form: logs.Form, secret: str
) -> None:
    from urllib.parse import quote

    logs.conceal(secret)
    logs.configure(form=form, file=tmp_path / "log")
    log.warning(
        "password %s, quoted %s",
        secret,
        quote(secret, safe=""),
        extra={"given": secret, "listed": [secret]},
    )
    try:
        raise ValueError(secret)
    except ValueError:
        log.exception("it failed for %r", secret)
    text = (tmp_path / "log").read_text()
    assert "***" in text
    for spelled in (
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        quote(secret, safe=""),
        repr(secret)[1:-1],
    ):
        assert spelled not in text


def test_a_password_in_an_address_is_hidden_without_being_named(tmp_path: Path) -> None:
    logs.configure(file=tmp_path / "log")
    log.warning("trying mqtt://anna:s3cret@host:1883 and mqtts://host")
    assert "trying mqtt://anna:***@host:1883 and mqtts://host" in (tmp_path / "log").read_text()


def test_line_breaks_in_a_message_are_escaped(tmp_path: Path) -> None:
    logs.configure(file=tmp_path / "log")
    log.warning("refused: %s", "no\n2026-01-01 ERROR coordinator: all is lost\x1b[2J")
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    assert "\x1b" not in (tmp_path / "log").read_text()


def test_files_rotate_and_stay_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LARGEST", 1000)
    with logs.record_log(tmp_path / logs.EVENTS, {}):
        for number in range(200):
            log.info("a line of about forty characters: %d", number)
    found = sorted(tmp_path.iterdir())
    assert [path.name for path in found] == [
        "log.jsonl",
        *(f"log.jsonl.{i}" for i in range(1, logs.KEPT + 1)),
    ]
    assert all(path.stat().st_size <= 1000 for path in found)


def test_a_record_is_formatted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def format_record(self: logs.FieldFormatter, record: logging.LogRecord) -> str:
        made.append(before(self, record))
        return made[-1]

    before = logs.FieldFormatter.format
    monkeypatch.setattr(logs.FieldFormatter, "format", format_record)
    with logs.record_log(tmp_path / "a", {}):
        log.info("one")
        log.info("two")
    assert made == (tmp_path / "a").read_text().splitlines()
    assert len(made) == 2


def test_a_recorded_log_adds_its_fields_until_it_ends(tmp_path: Path) -> None:
    about = {"run": "r", "round": 1}
    with logs.record_log(tmp_path / "a", about):
        log.info("one")
        about["round"] = 2
        log.info("two", extra={"agent": "pi"})
        log.info("three", extra={"round": 9})
    log.warning("not recorded")
    assert [
        (line["message"], line["run"], line["round"], line.get("agent"))
        for line in lines(tmp_path / "a")
    ] == [
        ("one", "r", 1, None),
        ("two", "r", 2, "pi"),
        ("three", "r", 9, None),
    ]


def test_a_full_disk_loses_log_lines_with_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no full disk to try")
    (tmp_path / "log").symlink_to("/dev/full")
    with logs.record_log(tmp_path / "log", {}):
        log.info("one")
        log.info("two")
    assert capsys.readouterr().err.count("logs are lost") == 1


def test_a_log_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"log file .*missing/log: cannot be written: No such file"
    ):
        logs.configure(file=tmp_path / "missing" / "log")
    done = CliRunner().invoke(main, ["join", "--log-file", str(tmp_path / "missing" / "log")])
    assert (done.exit_code, "error: log file" in done.output) == (3, True)


def test_passwords_and_tokens_are_secret_from_when_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-to-ask-with")
    token = Token("pi", "host", 8884, bytes(range(SECRET)), bytes(FINGERPRINT))
    letters = str(token).split("-")[1]
    parse_mqtt_address("mqtt://anna:hunter%402@host")
    parse_token(str(token))
    load_client_token(tmp_path / "token")
    logs.configure(form="json", file=tmp_path / "log")
    log.warning("hunter@2 hunter%%402 a-token-to-ask-with %s", letters, extra={"given": letters})
    (line,) = lines(tmp_path / "log")
    assert line["message"] == "*** *** *** ***"
    assert line["given"] == "***"
