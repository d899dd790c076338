"""`coordinator report` writes one HTML file on a run that loads nothing and trusts no text."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from coordinator.cli.main import main
from coordinator.release.archive import Archive
from coordinator.release.history import (
    History,
    Item,
    add_reports,
    release,
    roll_back,
    start_canary,
)
from coordinator.report.repeat_command import describe_repetition, render_toml
from coordinator.settings.config import Config, load, to_json
from coordinator.store.run_store import Store
from federated.wire.release_messages import Serving, Version
from models.given_objects import give
from tests.support.memory_federation import RUN, Member, digits, federate
from tests.support.processes import COORDINATOR, Start
from tests.support.waiting import PATIENCE

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[3]
VOID = {"meta", "img", "source", "line", "circle"}
NAME = "<img src=x onerror=alert(1)>"
HOSTILE = "</td><script>alert(1)</script>\u202e\"'&"
SETTINGS = {
    "method.name": "fedavg",
    "model.name": "mlp-small",
    "method.widths": [0.25],
    "train.steps": 1,
    "rounds": 2,
    "fleet.min_agents": 2,
}


class Page(HTMLParser):
    """A page whose tags must be balanced. text: its visible text; tags: their names, with
    attributes.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.source = file.read_text()
        self.tags, self.open, self.words = list[tuple[str, dict[str, str | None]]](), [], []
        self.feed(self.source)
        self.close()
        assert not self.open
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a finished run, to copy."""
    folder = tmp_path_factory.mktemp("finished")
    federate(folder, [Member(f"a{i}", digits(i, 2)) for i in range(2)], SETTINGS)
    return folder / "runs"


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of a finished run."""
    return Path(shutil.copytree(finished, tmp_path / "runs"))


def run_report(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["report", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.output


def report(folder: Path, name: str = RUN) -> Page:
    out = folder / "report.html"
    code, output = run_report(name, "--runs", str(folder / "runs"), "--out", str(out))
    assert (code, output) == (0, f"wrote {out}\n")
    return Page(out)


def test_a_page_loads_nothing_and_shows_hostile_text_as_text(tmp_path: Path, runs: Path) -> None:
    with closing(sqlite3.connect(runs / RUN / "run.sqlite")) as database, database:
        database.execute("UPDATE decisions SET reason = ? WHERE agent = 'a0'", (HOSTILE,))
        database.execute("UPDATE updates SET agent = ? WHERE agent = 'a1'", (NAME,))
        database.execute("UPDATE scores SET agent = ? WHERE agent = 'a1'", (NAME,))
        database.execute("UPDATE decisions SET agent = ? WHERE agent = 'a1'", (NAME,))
        database.execute(
            "UPDATE profiles SET profile = json_set(profile, '$.system', ?)", (HOSTILE,)
        )
    page = report(tmp_path)
    assert page.text.count(NAME) == 3, "in what it gained, its submodel, and its time"
    assert page.text.count("</td><script>alert(1)</script>?\"'&") == 2, "a reason and a system"
    assert "\u202e" not in page.source
    assert {tag for tag, _ in page.tags} & {"script", "link", "iframe", "a"} == set()
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        for place in ("src", "srcset"):
            assert (attributes.get(place) or "data:image/png;").startswith("data:image/png;"), tag
    assert "url(" not in page.source
    assert "default-src 'none'" in page.source
    assert len([tag for tag, _ in page.tags if tag == "img"]) == 4
    assert "The devices themselves reported" in page.text
    assert "Nothing was released" in page.text


def test_a_run_without_rounds_has_a_page_that_says_so(tmp_path: Path) -> None:
    Store.create(tmp_path / "runs", "empty").close()
    page = report(tmp_path, "empty")
    for words in ("needs a finished round", "No round was evaluated", "No device has been asked"):
        assert words in page.text
    assert "img" not in {tag for tag, _ in page.tags}


def test_the_page_shows_releases_with_canaries_and_rollbacks(tmp_path: Path) -> None:
    Store.create(tmp_path / "runs", "spring").close()
    archive = Archive(tmp_path / "runs", "spring")
    first, second = (Item(Version(letter * 12, 7, letter * 64, 9, ("w1",))) for letter in "ab")
    history = release(History("spring"), first, "2026-01-02T03:04:05+00:00")
    history = start_canary(history, second, ["pi-7"], "2026-01-03T03:04:05+00:00")
    serving = Serving("pi-7", "s", "a" * 12, "w1", accuracy=0.5, examples=8, refused="b" * 12)
    history = add_reports(history, {"pi-7": serving})
    archive.write(history)
    assert f"Version {'b' * 12} is a canary on pi-7." in report(tmp_path, "spring").text
    (tmp_path / "report.html").unlink()
    archive.write(roll_back(history, "2026-01-04T03:04:05+00:00", [HOSTILE]))
    page = report(tmp_path, "spring")
    assert f"{'a' * 12} 7 stable 1 0 50.0%" in page.text
    assert f"{'b' * 12} 7 withdrawn or replaced 0 1 -" in page.text
    assert f"2026-01-04 03:04:05 {'b' * 12} rolled back </td><script>" in page.text
    (tmp_path / "report.html").unlink()
    (archive.folder / "history.json").write_text("{}")
    assert "not a history of releases" in report(tmp_path, "spring").text


def test_errors_leave_no_file_and_no_run(tmp_path: Path) -> None:
    Store.create(tmp_path / "runs", "empty").close()
    runs, taken = ("--runs", str(tmp_path / "runs")), tmp_path / "taken.html"
    taken.write_text("mine")
    code, output = run_report("none", *runs, "--out", str(tmp_path / "none.html"))
    assert (code, "no run 'none'" in output) == (7, True)
    code, output = run_report("empty", *runs, "--out", str(taken))
    assert (code, "taken.html: the file exists" in output) == (3, True)
    code, output = run_report("empty", *runs, "--out", str(taken / "below.html"))
    assert (code, f"{taken}" in output) == (3, True)
    code, output = run_report("empty", *runs, "--out", str(tmp_path / "c.html"), "--compare")
    assert (code, "no finished round" in output) == (7, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "taken.html"]
    assert taken.read_text() == "mine"


@pytest.mark.usefixtures("runs")
def test_only_the_report_at_the_default_path_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("results") / RUN / "report.html"
    assert run_report(RUN) == (0, f"wrote {file}\n")
    first = file.read_text()
    file.write_text(f"{first} of yesterday")
    assert run_report(RUN) == (0, f"wrote {file}\n")
    assert "of yesterday" not in file.read_text()
    code, output = run_report(RUN, "--out", str(file))
    assert (code, "the file exists" in output) == (3, True)


def test_no_comparison_without_the_data_of_the_devices(tmp_path: Path, runs: Path) -> None:
    own = tmp_path / "own"
    members = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
    federate(own, members, SETTINGS | {"data.name": "agents", "rounds": 1})
    for folder, words in (
        (own, "data of their own, which never leave"),
        (runs.parent, "are not here"),
    ):
        out = folder / "report.html"
        where = ("--runs", str(folder / "runs"), "--out", str(out))
        code, output = run_report(RUN, *where, "--compare")
        assert (code, words in output, out.exists()) == (3, True, False), output
        text = report(folder).text
        assert "data never leave the devices" in text
        assert ("--compare adds it" in text) == (folder != own)


@pytest.mark.usefixtures("runs")
def test_a_page_needs_no_torch_unless_it_compares(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from coordinator.cli.main import main; main()"
    out = tmp_path / "report.html"
    words = ["report", "--runs", str(tmp_path / "runs"), "--out", str(out), "--format", "json"]
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"run": RUN, "file": str(out), "compared": False}
    assert "Who trained which submodel" in Page(out).text
    out.unlink()
    done = subprocess.run([*command, "--compare"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, "pip" in done.stderr, out.exists()) == (4, True, False)


# ---- the command that repeats a run --------------------------------------------------------------


def test_the_configuration_in_the_page_is_that_of_the_run(tmp_path: Path) -> None:
    given = {
        "name": "spring-seed3",
        "seed": 3,
        "method.name": "fedprox",
        "train.lr": 1e-5,
        "assign.submodels": {"pi-*": "w0.25", 'quo"te\u00e9\U0001f600\x7f': "w1"},
        "simulate.speeds": [1, 0.5],
        "broker.url": "mqtt://user:password@host",
        "metrics.listen": "127.0.0.1:1",
    }
    config = load(None, {}, list(given.items()))
    text = render_toml(config)
    (tmp_path / "run.toml").write_text(text)
    again = to_json(load(tmp_path / "run.toml", {}, []))
    plain = to_json(Config())
    assert again == {**to_json(config), "broker": plain["broker"], "metrics": plain["metrics"]}
    assert "password" not in text


def test_the_note_fits_how_the_run_was_started() -> None:
    config = load(None, {}, [("name", "spring-seed3"), ("seed", 3), ("simulate.seeds", [3, 4])])
    lines, note = describe_repetition(config, ["d0"], simulated=True)
    assert lines[0] == "cat > spring-seed3.toml <<'EOF'"
    assert {'name = "spring"', "seed = 3", "EOF"} <= set(lines)
    assert "coordinator simulate spring-seed3.toml --runs repeated" in lines[-1]
    assert not any("seeds" in line for line in lines)
    lines, note = describe_repetition(config, ["pi"], simulated=False)
    assert lines[-2].startswith("coordinator start --config spring-seed3.toml")
    assert "edge-agent join --run spring-seed3" in lines[-1]
    demo = load(None, {}, [("name", "demo"), ("seed", 5), ("rounds", 2)])
    lines, _ = describe_repetition(demo, ["pi", "laptop"], simulated=False)
    assert lines == ["coordinator demo --seed 5 --rounds 2 --keep repeated"]
    mine = msgspec.structs.replace(config, method={"name": give("mine_0123abcd", object())})
    lines, note = describe_repetition(mine, ["d0"], simulated=True)
    assert (lines, "(mine)" in note) == ([], True)


@pytest.mark.slow
@pytest.mark.processes
def test_the_command_in_the_page_repeats_a_simulation(tmp_path: Path, start: Start) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "coordinator"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m coordinator.cli "$@"\n')
    program.chmod(0o755)
    paths = {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    file = tmp_path / "tiny.toml"
    file.write_text(
        'rounds = 2\n[method]\nname = "fedavg"\nwidths = [0.25]\n[train]\nsteps = 1\n'
        '[assign.submodels]\n"d*" = "w0.25-d4.4.4"\n[simulate]\nagents = 2\nworkers = 1\n'
    )

    def shell(text: str) -> None:
        environment = {**os.environ, **paths}
        subprocess.run(["bash", "-ec", text], cwd=tmp_path, env=environment, check=True)

    assert start(*COORDINATOR, "simulate", "tiny.toml", "--seeds", "4").wait(PATIENCE) == 0
    page = report(tmp_path, "tiny-seed4")
    (commands,) = re.findall(r"<pre><code>(.*?)</code></pre>", page.source, re.DOTALL)
    shell(html.unescape(commands))
    first, second = (
        (tmp_path / runs / "tiny-seed4" / "round-000002.safetensors").read_bytes()
        for runs in ("runs", "repeated")
    )
    assert first == second
