"""`coordinator web` refuses unsafe addresses and tokens before it listens."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from coordinator.cli.main import main
from federated.errors import ConfigError

pytest.importorskip("starlette")

from coordinator.web import serve
from coordinator.web.sign_in import COOKIE, LIFETIME, MAX_SESSIONS, SignIn, load_token


def run_web(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["web", *arguments])
    return result.exit_code, result.output


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(serve, "find_page", lambda: tmp_path)


@pytest.mark.usefixtures("page")
def test_an_address_that_others_reach_needs_a_certificate(tmp_path: Path) -> None:
    code, output = run_web("--listen", "0.0.0.0:0", "--runs", str(tmp_path / "runs"))
    assert (code, "--certificate" in output) == (2, True)
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("page")
def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    code, output = run_web("--certificate", str(tmp_path / "cert.pem"))
    assert (code, "--key" in output) == (2, True)
    code, output = run_web("--certificate", str(tmp_path / "c.pem"), "--key", str(tmp_path / "k"))
    assert (code, "c.pem" in output) == (3, True)


@pytest.mark.usefixtures("page")
def test_an_address_that_is_no_address_is_refused() -> None:
    assert run_web("--listen", "nonsense")[0] == 2


def test_without_the_built_page_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "PACKAGE", "espalier_web_that_is_missing")
    code, output = run_web()
    assert (code, "[web]" in output) == (4, True)


def test_a_new_token_is_secret_and_stays_the_same(tmp_path: Path) -> None:
    file = tmp_path / "web-token"
    token = load_token(file)
    assert len(token) >= 32
    assert file.stat().st_mode & 0o777 == 0o600
    assert load_token(file) == token
    assert load_token(tmp_path / "other") != token


@pytest.mark.parametrize("content", ["", "short", "with a\nline break in the middle"])
def test_an_unsafe_token_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "web-token"
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="at least 16"):
        load_token(file)


class Asks:
    """A request with a cookie."""

    def __init__(self, session: str) -> None:
        self.cookies, self.headers = {COOKIE: session}, dict[str, str]()


def test_a_session_ends_after_its_lifetime_and_old_ones_make_room() -> None:
    now = 0.0
    sign_in = SignIn("token", lambda: now)
    first = Asks(sign_in.begin())
    assert sign_in.knows(first)  # type: ignore[arg-type]
    now = LIFETIME + 1.0
    assert not sign_in.knows(first)  # type: ignore[arg-type]
    second = Asks(sign_in.begin())
    for _ in range(MAX_SESSIONS):
        newest = Asks(sign_in.begin())
    assert not sign_in.knows(second)  # type: ignore[arg-type]
    assert sign_in.knows(newest)  # type: ignore[arg-type]
