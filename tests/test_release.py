"""Releases, canaries and rollbacks with commands at a real broker, with agents that follow."""

from __future__ import annotations

import json
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from coordinator.cli.main import main
from edge_agent.releases.assigned_release import Subscription
from edge_agent.releases.release_follower import Follower, open_follower_link
from export import onnx_session, release_reader
from export.onnx_session import Array
from federated.data import loading
from federated.wire import tensors
from federated.wire.release_messages import Serving
from tests.support.memory_federation import RUN, Member, digits, federate
from tests.support.processes import WITHOUT_TORCH, Start, read_address
from tests.support.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.processes, pytest.mark.broker]
SMALL = "w1-d1.1.1"
RESULT = tuple[int, dict[str, Any], str]

Command = Callable[..., RESULT]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return the folder of a run of one round, with two agents that held the same submodel."""
    train(tmp_path, 1)
    return tmp_path / "runs"


def train(folder: Path, rounds: int) -> None:
    """Run up to this round."""
    members = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
    quick = {
        "model.name": "resnet-tiny",
        "data.name": "digits",
        "train.epochs": 1,
        "train.steps": 2,
        "train.batch": 16,
        "evaluate.devices": False,
    }
    pins = {
        "assign.submodels": {"a0": SMALL, "a1": SMALL},
        "method.name": "fedavg",
        "method.depths": (1,),
        "method.widths": (1.0,),
    }
    federate(folder, members, {**quick, **pins, "rounds": rounds}, resume=rounds > 1)


@pytest.fixture
def release(runs: Path, broker: str) -> Command:
    """Run `coordinator release`. Return its exit code, result and messages.

    It runs in this process, which has imported the exporter; `test_processes` starts it.
    """

    def run(*arguments: str) -> RESULT:
        where = ["--runs", str(runs), "--broker", broker]
        done = CliRunner().invoke(main, ["release", RUN, *where, *arguments, "--format", "json"])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        lines = done.stdout.splitlines()
        return done.exit_code, json.loads(lines[-1]) if lines else {}, done.stderr

    return run


class Listener(threading.Thread):
    """An agent that downloads and reports every release that arrives."""

    def __init__(self, broker: str, name: str, store: Path) -> None:
        super().__init__(daemon=True)
        self.name, self.versions, self.stop = name, list[str](), threading.Event()
        self._link = open_follower_link(broker, RUN, name)
        self._follower = Follower(self._link, Subscription(RUN, name, None, store))

    def run(self) -> None:
        while not self.stop.is_set():
            arrival = self._follower.turn(0.1)
            if arrival is not None:
                release_reader.read(arrival.folder, arrival.submodel)
                self.versions.append(arrival.version)
                self._follower.report(
                    Serving(
                        self.name,
                        "s",
                        arrival.version,
                        arrival.submodel,
                        "fp32",
                        "cpu",
                        0.001,
                        0.001,
                    )
                )
        self._follower.close()
        self._link.close()


@pytest.fixture
def listeners(broker: str, tmp_path: Path) -> Iterator[dict[str, Listener]]:
    started = {name: Listener(broker, name, tmp_path / name) for name in ("a0", "a1")}
    for listener in started.values():
        listener.start()
    yield started
    for listener in started.values():
        listener.stop.set()
    for listener in started.values():
        listener.join(60)


@pytest.mark.slow
def test_the_runs_own_rounds_are_released_tried_and_taken_back(
    tmp_path: Path, runs: Path, release: Command, listeners: dict[str, Listener]
) -> None:
    code, first, said = release("--wait", "30")
    assert code == 0, said
    assert {row["agent"]: row["version"] for row in first["reports"]} == {
        "a0": first["stable"],
        "a1": first["stable"],
    }
    code, again, said = release()
    assert (code, again["stable"]) == (0, first["stable"])
    assert f"round 1 is already version {first['stable']} (stable); published it again" in said

    train(tmp_path, 2)
    code, tried, said = release("--canary", "50%", "--wait", "30")
    assert code == 0, said
    assert (tried["stable"], len(tried["agents"])) == (first["stable"], 1)
    assert tried["versions"][tried["canary"]]["round"] == 2
    code, back, _ = release("--rollback")
    assert (code, back["stable"], back["canary"]) == (0, first["stable"], "")
    code, refused, said = release("--canary", "50%")
    assert (code, refused) == (8, {})
    assert "was rolled back" in said
    code, nothing, said = release("--rollback")
    assert (code, nothing) == (8, {})
    assert "nothing to roll back to" in said

    code, done, said = release("--canary", "a1", "--promote", "--force", "--wait", "30")
    assert code == 0, said
    assert (done["stable"], done["previous"]) == (tried["canary"], first["stable"])
    code, status, said = release("--status")
    assert (code, status["stable"]) == (0, tried["canary"])


@pytest.mark.slow
def test_a_folder_that_is_damaged_or_of_another_run_changes_nothing(
    tmp_path: Path, runs: Path, release: Command
) -> None:
    assert release()[0] == 0
    before = (runs / RUN / "releases" / "history.json").read_bytes()
    made = tmp_path / "made"
    shutil.copytree(
        next(path for path in (runs / RUN / "releases").iterdir() if path.is_dir()), made
    )
    (made / f"{SMALL}.onnx").write_bytes(b"no graph")
    code, _, said = release("--bundle", str(made))
    assert code == 8
    assert "expected sha256" in said
    assert (runs / RUN / "releases" / "history.json").read_bytes() == before


class Client(threading.Thread):
    """Repeats an HTTP request with the same digits, and records the answers; a failed request ends
    it.
    """

    def __init__(self, url: str, x: Array) -> None:
        super().__init__(daemon=True)
        self.url, self.stop, self.error = url, threading.Event(), ""
        self.heard: list[tuple[str, str, tuple[int, ...]]] = []  # version, variant, labels
        self._body = json.dumps({"inputs": x.tolist()}).encode()

    def run(self) -> None:
        while not self.stop.is_set():
            time.sleep(0.005)  # so that the processors also do what they are asked
            try:
                said = send_request(f"{self.url}/infer", self._body)
                self.heard.append(
                    (
                        said["version"],
                        said["variant"],
                        tuple(answer["label"] for answer in said["answers"]),
                    )
                )
            except OSError as error:  # also an answer that is an error
                self.error = f"{error} after {len(self.heard)} answers"
                return

    def turns(self) -> list[str]:
        """Return the versions in the order in which they answered, once per consecutive series."""
        return [version for version, _ in groupby(version for version, _, _ in self.heard)]


def send_request(url: str, body: bytes | None = None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


@pytest.fixture
def agent(tmp_path: Path, broker: str, start: Start) -> Iterator[str]:
    """Yield the address of an agent of the run that serves over HTTP, in a Python that cannot
    import torch.
    """
    where = ["--broker", broker, "--run", RUN, "--name", "a0", "--store", "device"]
    process, log = (
        start(*WITHOUT_TORCH, "infer", "--serve", "127.0.0.1:0", *where),
        tmp_path / "0.err",
    )
    yield read_address(log)
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, log.read_text()
    assert "Traceback" not in log.read_text()


def answers_with(agent: str, version: str) -> bool:
    try:
        return bool(send_request(f"{agent}/release").get("version") == version)
    except OSError:  # it starts
        return False


def expected(folder: Path, x: Array) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return the labels of these digits from each variant of a release, as computed on this
    machine.
    """
    entry = release_reader.find_entry(release_reader.read(folder), SMALL)
    version = release_reader.read_version(folder)
    found = {
        v.kind: onnx_session.load(folder / v.file.name).predict(x).argmax(axis=1)
        for v in entry.variants
    }
    return {
        (version, kind): tuple(int(label) for label in labels) for kind, labels in found.items()
    }


def spoiled(folder: Path, out: Path) -> Path:
    """Return a release whose graphs fail the self-test although all digests match."""
    shutil.copytree(folder, out)
    made = release_reader.read_manifest(out)
    x, said = release_reader.read_check(out, made)
    (out / release_reader.CHECK).write_bytes(
        tensors.encode({}, {"x": x, **{name: -logits for name, logits in said.items()}})
    )
    file = release_reader.describe_file(out / release_reader.CHECK)
    (out / release_reader.MANIFEST).write_bytes(msgspec.json.encode(replace(made, check=file)))
    assert release_reader.read(out).check == file
    return out


@pytest.mark.slow
def test_no_request_is_lost_while_releases_are_replaced(
    tmp_path: Path, agent: str, runs: Path, release: Command
) -> None:
    """The first release goes to all agents, the second is promoted as a canary, and a third fails
    its self-test and is rolled back. Every request gets an answer.
    """
    x = loading.load_central("digits").x_held[:4]
    archive = runs / RUN / "releases"
    one = release()[1]["stable"]
    right = expected(archive / one, x)
    eventually(lambda: answers_with(agent, one))
    clients = [Client(agent, x) for _ in range(2)]
    for client in clients:
        client.start()

    train(tmp_path, 2)
    code, told, said = release("--canary", "a0", "--promote", "--wait", "60")
    two = told["stable"]
    assert code == 0, said
    assert (told["previous"], told["verdict"]["reasons"]) == (one, [])
    right |= expected(archive / two, x)
    assert right.keys() >= {(one, "fp32"), (two, "fp32")}

    bad = spoiled(archive / two, tmp_path / "bad")
    code, told, said = release("--bundle", str(bad), "--canary", "a0", "--wait", "60")
    assert code == 0, said
    (row,) = told["reports"]
    assert (row["version"], row["failed"]) == (two, 0), "it still serves the last good one"
    assert (row["state"], row["refused"]) == ("refused", release_reader.read_version(bad))
    assert "deviates from the exporter's machine" in row["reason"]
    assert row["answered"] > 0
    code, _, said = release("--promote")
    assert code == 8
    assert "is not promoted" in said
    assert "a0 refused it" in said
    code, told, _ = release("--rollback")
    assert (code, told["stable"], told["canary"]) == (0, two, "")
    code, told, _ = release("--rollback")
    assert (code, told["stable"]) == (0, one)
    eventually(lambda: answers_with(agent, one))
    time.sleep(0.5)

    for client in clients:
        client.stop.set()
        client.join(60)
        assert not client.error
        assert client.turns() == [one, two, one]
        assert all(
            labels == right[version, variant] for version, variant, labels in client.heard
        ), "each answer is that of the version it names"
    assert sum(len(client.heard) for client in clients) > 100
    assert send_request(f"{agent}/release")["failed"] == 0
