"""`coordinator web` refuses unsafe addresses and tokens before it listens."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from coordinator import built_page
from coordinator.cli.main import main
from federated.errors import ConfigError
from tests.support.processes import AGENT, COORDINATOR, Running, Start
from tests.support.run_pages import start_run
from tests.support.waiting import PATIENCE, eventually

pytest.importorskip("starlette")

from coordinator.web import serve
from coordinator.web.defaults import TOKEN
from coordinator.web.sign_in import COOKIE, LIFETIME, MAX_SESSIONS, SignIn, TokenHolder, load_tokens


def run_web(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["web", *arguments])
    return result.exit_code, result.output


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(serve, "find_page", lambda command: tmp_path)


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


def test_without_the_built_page_the_error_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(built_page, "PACKAGE", "espalier_web_that_is_missing")
    code, output = run_web()
    assert (code, "[web]" in output, "make web" in output) == (4, True, True)


def test_new_tokens_of_every_role_are_secret_and_stay_the_same(tmp_path: Path) -> None:
    file = tmp_path / "web-token"
    holders = load_tokens(file)
    assert [one.role for one in holders] == ["admin", "operator", "viewer"]
    assert min(len(one.token) for one in holders) >= 32
    assert file.stat().st_mode & 0o777 == 0o600
    assert load_tokens(file) == holders
    assert not set(load_tokens(tmp_path / "other")) & set(holders)


def write_token_file(folder: Path, content: str) -> Path:
    file = folder / "web-token"
    file.write_text(content)
    file.chmod(0o600)
    return file


def test_a_token_without_a_role_is_an_admins_and_holders_have_names(tmp_path: Path) -> None:
    file = write_token_file(tmp_path, f"{'a' * 16}\n\n{'b' * 16} operator Ann B.\n")
    assert load_tokens(file) == (
        TokenHolder("a" * 16, "admin", "admin"),
        TokenHolder("b" * 16, "operator", "Ann B."),
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "expected different tokens, found none"),
        ("short", "line 1: expected a token with at least 16 .* found 5"),
        (f"{'a' * 15}\u00e9", "printable ASCII"),
        (f"{'a' * 16}\n{'b' * 16} boss\n", "line 2: .*viewer, operator, admin.* the role 'boss'"),
        (f"{'a' * 16} viewer {'n' * 65}", "at most 64 characters, found .* 65"),
        (f"{'a' * 16}\n{'a' * 16} viewer\n", "found the same token twice"),
    ],
)
def test_an_unsafe_token_file_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_tokens(write_token_file(tmp_path, content))


class Asks:
    """A request with a cookie."""

    def __init__(self, session: str) -> None:
        self.cookies, self.headers = {COOKIE: session}, dict[str, str]()


def test_a_session_ends_after_its_lifetime_and_old_ones_make_room() -> None:
    now = 0.0
    sign_in = SignIn([TokenHolder("token")], lambda: now)
    first = Asks(sign_in.begin())
    assert sign_in.knows(first)  # type: ignore[arg-type]
    now = LIFETIME + 1.0
    assert not sign_in.knows(first)  # type: ignore[arg-type]
    second = Asks(sign_in.begin())
    for _ in range(MAX_SESSIONS):
        newest = Asks(sign_in.begin())
    assert not sign_in.knows(second)  # type: ignore[arg-type]
    assert sign_in.knows(newest)  # type: ignore[arg-type]


@pytest.fixture
def installed_page(tmp_path: Path) -> None:
    """A package that stands for the built page, in the folder where commands start, which is on
    their path.
    """
    static = tmp_path / built_page.PACKAGE / "static"
    static.mkdir(parents=True)
    (static.parent / "__init__.py").write_text("")
    (static / "index.html").write_text("<!doctype html>the page")


def find_server(coordinator: Running) -> psutil.Process | None:
    """Return the process of a coordinator that serves the page."""
    for child in psutil.Process(coordinator.pid).children():
        with contextlib.suppress(psutil.ZombieProcess):
            if "coordinator.web.serve" in child.cmdline():
                return child
    return None


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.broker
@pytest.mark.usefixtures("installed_page")
def test_a_run_does_not_wait_for_a_page_that_hangs(start: Start, broker: str) -> None:
    coordinator = start_run(start, "--broker", broker, "--rounds", "2", "--web", "127.0.0.1:0")
    server = eventually(lambda: find_server(coordinator))
    server.suspend()
    for index in range(2):
        start(*AGENT, "join", "--broker", broker, "--name", f"a{index}", "--wait", "120")
    assert coordinator.wait(PATIENCE) == 0
    assert not server.is_running()


@pytest.mark.processes
@pytest.mark.broker
@pytest.mark.usefixtures("installed_page")
def test_start_serves_the_page_beside_the_run(start: Start, tmp_path: Path) -> None:
    """The page's process is restarted after a kill, and ends with the coordinator. No file but its
    own has the token.
    """
    command = ["start", "--name", "r", "--method", "fedavg", "--model", "mlp-small", "--port", "0"]
    coordinator = start(*COORDINATOR, *command, "--web", "127.0.0.1:0", "--format", "json")
    printed = tmp_path / "0.err"

    def find_url() -> str:
        found = re.search(r"open (http://\S+) and sign in", printed.read_text())
        return found[1] if found else ""

    eventually(find_url)
    url = find_url()

    def read(path: str) -> bytes:
        with urllib.request.urlopen(url + path, timeout=30) as answer:
            return bytes(answer.read())

    assert b"the page" in read("/")
    token = (tmp_path / "runs" / TOKEN).read_text().split()[0]
    ask = urllib.request.Request(f"{url}/api/runs", headers={"Authorization": f"Bearer {token}"})
    eventually(lambda: b'"r"' in urllib.request.urlopen(ask, timeout=30).read())

    first = find_server(coordinator)
    assert first is not None
    first.kill()
    eventually(lambda: (child := find_server(coordinator)) is not None and child.pid != first.pid)
    assert b"the page" in read(f"/?token={token}")
    for given in (token, f"{token}-wrong"):
        sent = urllib.request.Request(f"{url}/api/sign-in", json.dumps({"token": given}).encode())
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(sent, timeout=30).close()
    second = find_server(coordinator)
    assert second is not None
    coordinator.kill()
    psutil.wait_procs([second], 30)
    assert not second.is_running()
    files = (file for file in tmp_path.rglob("*") if file.is_file())
    kept = [file for file in files if token.encode() in file.read_bytes()]
    assert kept == [tmp_path / "runs" / TOKEN]


@pytest.mark.usefixtures("page")
def test_start_refuses_an_unsafe_address_of_the_page_before_it_creates_a_run(
    tmp_path: Path,
) -> None:
    result = CliRunner().invoke(
        main, ["start", "--web", "0.0.0.0:0", "--runs", str(tmp_path / "runs")]
    )
    assert (result.exit_code, "--web-certificate FILE" in result.output) == (2, True)
    assert not (tmp_path / "runs").exists()


def test_start_refuses_a_certificate_without_a_page(tmp_path: Path) -> None:
    command = ["start", "--web-certificate", "cert.pem", "--runs", str(tmp_path / "runs")]
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, "require --web" in result.output) == (2, True)
    assert not (tmp_path / "runs").exists()
