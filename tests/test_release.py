"""A release, a canary, a rollback, by command, at a real broker, with agents that follow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator import broker as brokers
from edge_agent.follow import Follower, link_of
from export import bundle
from federated.wire import messages
from tests.support.federation import RUN, Member, digits, federate

pytestmark = [pytest.mark.processes, pytest.mark.broker]
COORDINATOR = [sys.executable, "-c", "from coordinator.cli import main; main()"]
SMALL = "w1-d1.1.1"
RESULT = tuple[int, dict[str, Any], str]

Command = Callable[..., RESULT]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with brokers.start("127.0.0.1", 0, "auto", tmp_path / "broker") as started:
        yield started.address


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The folder of a run of one round, with two agents that held the same submodel."""
    train(tmp_path, 1)
    return tmp_path / "runs"


def train(folder: Path, rounds: int) -> None:
    """Runs up to this round."""
    members = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
    quick = {"model.name": "resnet-small", "data.name": "digits", "train.epochs": 1, "train.steps": 20, "train.batch": 16, "evaluate.devices": False}
    pins = {"assign.submodels": {"a0": SMALL, "a1": SMALL}, "method.name": "fedavg", "method.depths": (1,), "method.widths": (1.0,)}
    federate(folder, members, {**quick, **pins, "rounds": rounds}, resume=rounds > 1)


@pytest.fixture
def release(tmp_path: Path, runs: Path, broker: str) -> Command:
    """`coordinator release` as a process of its own: exit code, result, and what it said."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}

    def run(*arguments: str) -> RESULT:
        command = [*COORDINATOR, "release", RUN, "--runs", str(runs), "--broker", broker, *arguments, "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}, done.stderr

    return run


class Listener(threading.Thread):
    """An agent that takes up whatever arrives, and says so."""

    def __init__(self, broker: str, name: str, store: Path) -> None:
        super().__init__(daemon=True)
        self.name, self.versions, self.stop = name, list[str](), threading.Event()
        self._link = link_of(broker, RUN, name)
        self._follower = Follower(self._link, RUN, name, None, store)

    def run(self) -> None:
        while not self.stop.is_set():
            arrival = self._follower.turn(0.1)
            if arrival is not None:
                bundle.read(arrival.folder, arrival.submodel)
                self.versions.append(arrival.version)
                self._follower.report(messages.Serving(self.name, "s", arrival.version, arrival.submodel, "fp32", "cpu", 0.001, 0.001))
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
        listener.join(10)


def test_the_runs_own_rounds_are_released_tried_and_taken_back(tmp_path: Path, runs: Path, release: Command, listeners: dict[str, Listener]) -> None:
    code, first, said = release("--wait", "30")
    assert code == 0, said
    assert {row["agent"]: row["version"] for row in first["reports"]} == {"a0": first["stable"], "a1": first["stable"]}
    code, again, said = release()
    assert (code, again["stable"]) == (0, first["stable"])
    assert f"nothing new: round 1 is version {first['stable']}, stable; published again" in said

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


def test_a_folder_that_is_damaged_or_of_another_run_changes_nothing(tmp_path: Path, runs: Path, release: Command) -> None:
    assert release()[0] == 0
    before = (runs / RUN / "releases" / "history.json").read_bytes()
    made = tmp_path / "made"
    shutil.copytree(next(path for path in (runs / RUN / "releases").iterdir() if path.is_dir()), made)
    (made / f"{SMALL}.onnx").write_bytes(b"no graph")
    code, _, said = release("--bundle", str(made))
    assert code == 8
    assert "expected sha256" in said
    assert (runs / RUN / "releases" / "history.json").read_bytes() == before
