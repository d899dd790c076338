"""The page's server shows what the commands print, only to people who signed in, and passes their
requests on to the coordinator.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator import audit_log
from coordinator.access.certificate_authority import Authority
from coordinator.cli.main import main
from coordinator.store.control_requests import read_requests
from coordinator.store.run_folders import DATABASE
from coordinator.store.run_store import Store
from edge_agent.access.enrolment import sign_request
from federated.defaults import METHOD
from federated.methods.catalogue import find_method
from federated.runtime.connection_limits import listen
from federated.wire.enrolment_token import parse_token
from federated.wire.links.catalogue import open_link
from tests.support.certificate_authority import member
from tests.support.memory_federation import RUN, Member, digits, federate
from tests.support.run_pages import configured

pytest.importorskip("uvicorn")

from coordinator.web import run_page_data
from coordinator.web.page_protection import HEADERS
from coordinator.web.page_server import PageServer, Site
from coordinator.web.run_page_data import PARTS, describe_part
from coordinator.web.sign_in import Role, TokenHolder

TOKEN = "a-token-for-these-tests"
HOLDERS = (
    TokenHolder(TOKEN, "admin", "ann"),
    TokenHolder("operator-of-these-tests", "operator", "otto"),
    TokenHolder("viewer-of-these-tests", "viewer", "vera"),
)
TOKENS: dict[Role, str] = {one.role: one.token for one in HOLDERS}
SETTINGS = {
    "method.name": "fedavg",
    "model.name": "mlp-small",
    "method.widths": [0.25],
    "train.steps": 1,
    "rounds": 2,
    "fleet.min_agents": 2,
    "evaluate.every": 1,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of two agents."""
    folder = tmp_path_factory.mktemp("fleet")
    federate(folder, [Member(f"a{i}", digits(i, 2)) for i in range(2)], SETTINGS)
    return folder / "runs"


@pytest.fixture
def server(runs: Path, tmp_path: Path) -> Iterator[PageServer]:
    (tmp_path / "index.html").write_text("<!doctype html>the page")
    site = Site(runs, tmp_path, HOLDERS)
    with closing(PageServer(site, listen("127.0.0.1", 0))) as made:
        yield made


class Browser:
    """Requests with what a browser adds to them."""

    def __init__(self, server: PageServer) -> None:
        self.address = server.url.partition("://")[2]
        self.headers: dict[str, str] = {}

    def call(
        self, path: str, body: object = None, headers: Mapping[str, str] = {}
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        # an export takes long on a busy machine
        with closing(http.client.HTTPConnection(self.address, timeout=300)) as link:
            data = None if body is None else json.dumps(body)
            method = "GET" if body is None else "POST"
            link.request(method, path, data, {**self.headers, **headers})
            response = link.getresponse()
            text = response.read().decode()
            kind = response.headers["content-type"] or ""
            return response.status, json.loads(text) if "json" in kind else text, response.headers

    def sign_in(self, token: str = TOKEN) -> None:
        status, _, headers = self.call("/api/sign-in", {"token": token})
        assert status == 200
        self.headers["Cookie"] = headers["set-cookie"].partition(";")[0]


@pytest.fixture
def browser(server: PageServer) -> Browser:
    made = Browser(server)
    made.sign_in()
    return made


def print_json(runs: Path, *arguments: str) -> Any:
    result = CliRunner().invoke(main, [*arguments, "--runs", str(runs), "--format", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_numbers_are_those_of_the_commands(browser: Browser, runs: Path) -> None:
    assert browser.call("/api/runs")[1] == print_json(runs, "runs")
    assert browser.call(f"/api/runs/{RUN}/status")[1] == print_json(runs, "status", RUN)
    assert browser.call(f"/api/runs/{RUN}/agents")[1] == print_json(runs, "devices", RUN)


def test_a_finished_run_has_every_part(browser: Browser) -> None:
    found = {part: browser.call(f"/api/runs/{RUN}/{part}") for part in PARTS}
    assert {status for status, *_ in found.values()} == {200}
    made = {part: value for part, (_, value, _) in found.items()}
    assert [one["round"] for one in made["rounds"]["rounds"]] == [1, 2]
    assert {score["round"] for score in made["rounds"]["scores"]} == {1, 2}
    tasks = [(one["round"], one["agent"], one["outcome"]) for one in made["tasks"]]
    assert tasks == [(n, agent, "folded") for n in (1, 2) for agent in ("a0", "a1")]
    (submodel,) = made["network"]["submodels"]
    assert (submodel["width"], submodel["updates"]) == (0.25, 4)
    told = {"submodel": submodel["name"], "regions": [submodel["name"]], "updates": 2, "last": 2}
    assert made["network"]["trained"] == [{"agent": agent, **told} for agent in ("a0", "a1")]
    settings = {one["key"]: one for one in made["settings"]}
    assert settings["rounds"]["value"] == 2
    assert settings["rounds"]["default"] == 20
    assert settings["method.widths"]["value"] == [0.25]
    assert settings["method.name"]["default"] == METHOD
    known = find_method("fedavg").settings
    for key, name in (("method.widths", "widths"), ("train.steps", "steps"), ("train.lr", "lr")):
        assert settings[key]["default"] == json.loads(json.dumps(known[name].default))
        assert settings[key]["description"] == known[name].help
    assert settings["train.lr"]["value"] == settings["train.lr"]["default"], "it is not given"
    assert any("round 2" in event["message"] for event in made["log"])
    assert made["rounds"]["outcomes"] == [["folded", 4]]
    assert made["faults"]["faults"] == []


def test_of_many_tasks_the_latest_are_shown(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_page_data, "MAX_TASKS", 3)
    tasks = browser.call(f"/api/runs/{RUN}/tasks")[1]
    assert [(one["round"], one["agent"]) for one in tasks] == [(2, "a0"), (2, "a1")]


@pytest.mark.parametrize(
    "path", ["/api/runs", f"/api/runs/{RUN}/status", f"/api/runs/{RUN}/stream"]
)
def test_without_a_sign_in_nothing_of_a_run_is_shown(server: PageServer, path: str) -> None:
    stranger = Browser(server)
    assert stranger.call(path)[0] == 401
    assert stranger.call(path, headers={"Cookie": "espalier-session=guessed"})[0] == 401
    assert stranger.call(path, headers={"Authorization": "Bearer guessed"})[0] == 401
    assert stranger.call("/")[:2] == (200, "<!doctype html>the page")


def test_a_wrong_token_is_refused_and_a_right_one_gives_a_strict_cookie(server: PageServer) -> None:
    stranger = Browser(server)
    assert stranger.call("/api/sign-in", {"token": "wrong"})[0] == 403
    cookie = stranger.call("/api/sign-in", {"token": TOKEN})[2]["set-cookie"]
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} < set(cookie.split("; "))


def test_a_signed_out_browser_sees_nothing(browser: Browser) -> None:
    assert browser.call("/api/runs")[0] == 200
    assert browser.call("/api/sign-out", {})[0] == 200
    assert browser.call("/api/runs")[0] == 401


def test_every_answer_forbids_frames_foreign_scripts_and_referrers(browser: Browser) -> None:
    for path in ("/", "/missing", "/api/runs", "/api/runs/none/status"):
        headers = browser.call(path)[2]
        assert {name: headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}],
)
def test_pages_of_other_sites_change_nothing(browser: Browser, headers: dict[str, str]) -> None:
    body = {"token": TOKEN, "command": "pause"}
    status, made, _ = browser.call(f"/api/runs/{RUN}/request", body, headers)
    assert (status, "comes from a page of" in made["error"]) == (403, True)
    assert browser.call("/api/sign-in", {"token": TOKEN}, headers)[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "[broken", "a" * 500])
def test_another_name_of_the_server_is_refused(browser: Browser, host: str) -> None:
    status, text, headers = browser.call("/", headers={"Host": host})
    assert (status, headers["content-type"]) == (400, "text/plain; charset=utf-8")
    assert "does not answer to the name" in text
    assert {name: headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8600", "[::1]:8600"])
def test_the_server_answers_to_its_names(browser: Browser, host: str) -> None:
    assert browser.call("/", headers={"Host": host})[0] == 200


@pytest.mark.parametrize("run", ["none", "..", "%2e%2e", "..%2f..%2fetc", "%00", "a" * 500])
def test_a_name_that_is_no_run_is_refused(browser: Browser, run: str) -> None:
    assert browser.call(f"/api/runs/{run}/status")[0] == 404
    assert browser.call(f"/api/runs/{run}/stream")[0] == 404


def test_an_unknown_part_lists_the_known_ones(browser: Browser) -> None:
    status, made, _ = browser.call(f"/api/runs/{RUN}/nonsense")
    assert (status, "status" in made["error"]) == (404, True)


def test_a_request_needs_the_token_again_and_reaches_the_coordinator(
    browser: Browser, runs: Path
) -> None:
    path = f"/api/runs/{RUN}/request"
    with closing(Store.open(runs, RUN)):  # as a coordinator does
        assert browser.call(path, {"command": "pause"})[0] == 403
        assert browser.call(path, {"command": "pause", "token": "wrong"})[0] == 403
        assert browser.call(path, {"command": "explode", "token": TOKEN})[0] == 422
        assert not read_requests(runs / RUN).paused
        status, made, _ = browser.call(path, {"command": "pause", "token": TOKEN})
        assert (status, made) == (200, {"run": RUN, "asked": "pause", "lines": []})
        assert read_requests(runs / RUN).paused
        assert browser.call(path, {"command": "resume", "token": TOKEN})[0] == 200
        assert not read_requests(runs / RUN).paused


def steer(browser: Browser, command: str, **fields: str) -> tuple[int, Any]:
    body = {"command": command, "token": TOKEN, **fields}
    return browser.call(f"/api/runs/{RUN}/request", body)[:2]


@pytest.mark.parametrize(
    ("command", "needed"),
    [(command, "operator") for command in ("pause", "stop", "pin", "release", "roll back")]
    + [("enroll", "admin"), ("revoke", "admin")],
)
def test_a_command_needs_the_token_of_a_role(
    server: PageServer, runs: Path, command: str, needed: Role
) -> None:
    browser = Browser(server)
    browser.sign_in(TOKENS["viewer"])
    assert browser.call(f"/api/runs/{RUN}/status")[0] == 200
    for role in ("viewer", "operator"):
        status, made = steer(browser, command, token=TOKENS[role], agent="a0")
        if role == needed:
            assert status == 409, "it reaches the run, which is over and has no certificates"
        else:
            assert (status, made["error"]) == (
                403,
                f"{command}: expected a token with the role {needed}, "
                f"found one with the role {role}",
            )


def test_the_audit_log_names_who_asked(browser: Browser, runs: Path) -> None:
    with closing(Store.open(runs, RUN)):
        assert steer(browser, "pause", token=TOKENS["operator"])[0] == 200
        assert steer(browser, "resume")[0] == 200
    result = CliRunner().invoke(main, ["audit", RUN, "--runs", str(runs), "--format", "json"])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()][-2:]
    place = "web page, from 127.0.0.1"
    assert [(row["what"], row["who"], row["role"], row["place"]) for row in rows] == [
        ("pause", "otto", "operator", place),
        ("resume", "ann", "admin", place),
    ]


def test_a_device_is_enrolled(browser: Browser, runs: Path, tmp_path: Path) -> None:
    with (
        closing(Authority(tmp_path / "pki")) as authority,
        configured(runs, RUN, {"tls": True, "pki": str(tmp_path / "pki")}),
    ):
        status, made = steer(browser, "enroll", agent="new", groups="eu canary")
        assert status == 200
        token = parse_token(made["lines"][0].rpartition(" ")[2])
        authority.enrol(token.secret, sign_request("new", ec.generate_private_key(ec.SECP256R1())))
        assert authority.registry.list_groups() == {"new": ("canary", "eu")}
        status, made = steer(browser, "enroll", agent="new")
        assert (status, "already has a certificate" in made["error"]) == (409, True)
        rows = audit_log.read(authority.registry.path)[0]
    assert [(row.who, row.what, row.about) for row in rows] == [
        ("ann", "enroll", "new"),
        ("ann", "add to canary", "new"),
        ("ann", "add to eu", "new"),
    ]


def test_a_device_is_pinned_and_its_pin_removed(browser: Browser, runs: Path) -> None:
    (submodel,) = (one["name"] for one in describe_part(runs, RUN, "network")["submodels"])
    with closing(Store.open(runs, RUN)):
        status, made = steer(browser, "pin", agent="a0", submodel=submodel)
        assert (status, made["lines"]) == (200, [f"a0 gets {submodel} from the next round on"])
        assert read_requests(runs / RUN).pins == {"a0": submodel}
        for fields, word in (
            ({"agent": "a9", "submodel": submodel}, "unknown agent 'a9'"),
            ({"agent": "a0", "submodel": "w9"}, "unknown submodel 'w9'"),
            ({"agent": " "}, "agent: expected a name"),
        ):
            status, made = steer(browser, "pin", **fields)
            assert (status, word in made["error"]) == (409, True)
        assert steer(browser, "pin", agent="a0")[0] == 200
        assert read_requests(runs / RUN).pins == {}


def test_the_certificates_of_a_device_are_revoked(
    browser: Browser, runs: Path, tmp_path: Path
) -> None:
    status, made = steer(browser, "revoke", agent="a0")
    assert (status, "does not use certificates" in made["error"]) == (409, True)
    with closing(Authority(tmp_path / "pki")) as authority:
        member(authority, "a0", tmp_path)
        with configured(runs, RUN, {"tls": True, "pki": str(tmp_path / "pki")}):
            status, made = steer(browser, "revoke", agent="a0")
            assert (status, made["lines"]) == (200, ["a0: revoked 1 certificate"])
            status, made = steer(browser, "revoke", agent="a1")
            assert (status, "'a1' was never enrolled" in made["error"]) == (409, True)
        assert authority.registry.list_barred() == {"a0"}
        member(authority, "phone", tmp_path)  # phones have certificates on every broker
        with configured(runs, RUN, {"pki": str(tmp_path / "pki")}, {"listen": "127.0.0.1:0"}):
            status, made = steer(browser, "revoke", agent="phone")
            assert (status, made["lines"]) == (200, ["phone: revoked 1 certificate"])


@pytest.mark.slow
def test_a_run_is_released_promoted_and_rolled_back(browser: Browser, runs: Path) -> None:
    """The page's buttons do what `coordinator release` does, over a broker in memory."""
    broker = {"broker": "memory://page-releases"}
    with closing(open_link(broker["broker"], "keeps the broker")):
        status, made = steer(browser, "promote", **broker)
        assert (status, "no canary to promote" in made["error"]) == (409, True)
        status, made = steer(browser, "release", share="a1", **broker)
        assert (status, "1 of 2 agents first: a1" in "\n".join(made["lines"])) == (200, True)
        shown = browser.call(f"/api/runs/{RUN}/releases")[1]
        assert (shown["stable"], shown["agents"]) == ("", ["a1"])
        assert shown["versions"][shown["canary"]]["round"] == 2
        status, made = steer(browser, "promote", **broker)
        assert (status, "is not promoted" in made["error"]) == (409, True), "a1 has not reported"
        assert steer(browser, "promote", force="yes", **broker)[0] == 200
        assert steer(browser, "collect reports", **broker)[0] == 200
        status, made = steer(browser, "roll back", **broker)
        assert (status, "nothing to roll back to" in made["error"]) == (409, True)
    after = browser.call(f"/api/runs/{RUN}/releases")[1]
    assert (after["stable"], after["canary"]) == (shown["canary"], "")
    assert [one["what"] for one in after["events"]] == ["canary", "promoted"]
    asked = [(row.what, row.about) for row in audit_log.read(runs / RUN / DATABASE)[0]]
    released = [("promote", ""), ("release", "canary a1"), ("promote", ""), ("promote", "force")]
    assert asked[-5:] == [*released, ("roll back", "")]
    assert after == print_json(runs, "release", RUN, "--status") | {"events": after["events"]}


def test_no_code_is_imported_for_the_address_of_a_broker(browser: Browser) -> None:
    """A scheme can name a function; only the coordinator's user may choose one."""
    sys.modules.pop("this", None)
    status, made = steer(browser, "collect reports", broker="this:s://host")
    assert (status, "expected the address of an MQTT broker" in made["error"]) == (409, True)
    assert "this" not in sys.modules


def test_a_run_without_releases_shows_none_and_gets_no_folder(browser: Browser, runs: Path) -> None:
    shutil.rmtree(runs / RUN / "releases", ignore_errors=True)
    shown = browser.call(f"/api/runs/{RUN}/releases")[1]
    assert (shown["versions"], shown["events"], shown["reports"]) == ({}, [], [])
    assert not (runs / RUN / "releases").exists()


def test_a_request_to_a_finished_run_says_that_it_does_not_run(browser: Browser) -> None:
    body = {"command": "stop", "token": TOKEN}
    status, made, _ = browser.call(f"/api/runs/{RUN}/request", body)
    assert (status, "is not running" in made["error"]) == (409, True)


@pytest.mark.parametrize("body", [[], "text", {"token": 7}, {"token": TOKEN, "command": None}])
def test_a_malformed_request_is_refused(browser: Browser, body: object) -> None:
    assert browser.call(f"/api/runs/{RUN}/request", body)[0] == 422


def test_the_stream_sends_the_status_and_then_its_changes(server: PageServer, runs: Path) -> None:
    signed = {"Authorization": f"Bearer {TOKEN}"}
    address = server.url.partition("://")[2]
    with closing(http.client.HTTPConnection(address, timeout=30)) as link:
        link.request("GET", f"/api/runs/{RUN}/stream", headers=signed)
        response = link.getresponse()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert json.loads(read_event(response))["state"] == "over"
        with closing(Store.open(runs, RUN)):
            assert json.loads(read_event(response))["state"] == "running"


def test_the_stream_ends_with_the_sign_in(browser: Browser) -> None:
    address = browser.address
    with closing(http.client.HTTPConnection(address, timeout=30)) as link:
        link.request("GET", f"/api/runs/{RUN}/stream", headers=browser.headers)
        response = link.getresponse()
        assert json.loads(read_event(response))["state"] == "over"
        browser.call("/api/sign-out", {})
        assert b"data" not in response.read()


def test_the_stream_tells_of_a_store_that_cannot_be_read(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(runs: Path, run: str) -> None:
        raise KeyError("a table of a later version")

    monkeypatch.setattr(run_page_data, "PARTS", {**PARTS, "status": fail})
    with closing(http.client.HTTPConnection(browser.address, timeout=30)) as link:
        link.request("GET", f"/api/runs/{RUN}/stream", headers=browser.headers)
        told = json.loads(read_event(link.getresponse()))["error"]
    assert "cannot read this" in told
    assert "a table of a later version" in told


def read_event(response: http.client.HTTPResponse) -> bytes:
    while not (line := response.readline()).startswith(b"data: "):
        assert line
    return line.removeprefix(b"data: ")


def test_names_of_devices_and_messages_arrive_as_data_not_as_markup(browser: Browser) -> None:
    """The page builds its elements from text; the server never writes HTML."""
    for part in PARTS:
        headers = browser.call(f"/api/runs/{RUN}/{part}")[2]
        assert headers["content-type"] == "application/json"
        assert headers["x-content-type-options"] == "nosniff"


def test_with_a_certificate_the_page_is_served_with_https(
    runs: Path, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    (tmp_path / "index.html").write_text("the page")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    site = Site(runs, tmp_path, HOLDERS, ())
    with closing(PageServer(site, listen("127.0.0.1", 0), context)) as server:
        assert server.url.startswith("https://")
        trust = ssl.create_default_context(cafile=certificate[0])
        trust.check_hostname = False
        target = server.url.partition("://")[2]
        with closing(http.client.HTTPSConnection(target, context=trust, timeout=30)) as link:
            link.request("POST", "/api/sign-in", json.dumps({"token": TOKEN}))
            assert "Secure" in link.getresponse().headers["set-cookie"]


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = tmp_path / "cert.pem", tmp_path / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    nothing = serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, nothing))
    os.chmod(paths[1], 0o600)  # noqa: PTH101
    return paths
