"""The serving agent as a process: requests never pause while releases arrive, fail and are
withdrawn over a real broker.
"""

from __future__ import annotations

import json
import signal
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import PATIENCE, eventually

pytest.importorskip("uvicorn")

from coordinator.broker import local_broker as brokers
from export import release_reader
from export.broker_publishing import announce, describe_version, publish
from federated.wire import topics
from federated.wire.links.catalogue import open_link
from federated.wire.release_messages import Release
from tests.support.handmade_variants import NAME, several
from tests.support.processes import WITHOUT_TORCH, Running, Start, read_address

pytestmark = [pytest.mark.processes, pytest.mark.broker]


def serve(start: Start, *more: str) -> Running:
    """Start `edge-agent infer` without PyTorch."""
    return start(
        *WITHOUT_TORCH,
        "infer",
        "--name",
        "pi",
        "--store",
        "store",
        "--threads",
        "1",
        "--format",
        "json",
        *more,
    )


def ask(url: str) -> Any:
    request = urllib.request.Request(
        f"{url}/infer", b'{"inputs": [2, 1]}', {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.loads(reply.read())


def state(url: str) -> Any:
    with urllib.request.urlopen(f"{url}/release", timeout=60) as reply:
        return json.loads(reply.read())


class Hammer:
    """Send requests without a pause from two threads.

    answers: (version, name of the class)
    failures: everything that went wrong
    """

    def __init__(self, url: str) -> None:
        self.answers: list[tuple[str, str]] = []
        self.failures: list[BaseException] = []
        self._url, self._stop = url, threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                found = ask(self._url)
                self.answers.append((found["version"], found["answers"][0]["name"]))
            except BaseException as error:
                self.failures.append(error)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def release(broker: str, stable: Path, canary: Path | None = None) -> None:
    link = open_link(broker, "coordinator")
    versions = [
        None if folder is None else describe_version(folder, "spring", {"pi": NAME})
        for folder in (stable, canary)
    ]
    for folder in (stable, canary):
        if folder is not None:
            publish(link, "spring", folder, {})
    announce(link, Release("spring", versions[0], versions[1], ("pi",) if canary else ()))
    link.close()


def version(tmp_path: Path, number: int, **changes: Any) -> Path:
    """Make a version whose class names contain its number."""
    return several(
        tmp_path / f"r{number}",
        ("fp32", "int8-u8s8"),
        padding=bytes([number]) * 300_000,
        classes=(f"name {number}", "-"),
        **changes,
    )


def test_no_request_is_lost_during_releases_failures_and_rollbacks(
    tmp_path: Path, broker: str, start: Start
) -> None:
    first, second, bad = (
        version(tmp_path, 1),
        version(tmp_path, 2),
        version(tmp_path, 3, off={"fp32": 9.0, "int8-u8s8": 9.0}),
    )
    release(broker, first)
    agent = serve(start, "--broker", broker, "--run", "spring", "--serve", "127.0.0.1:0")
    url = read_address(tmp_path / "0.err")
    eventually(lambda: state(url)["state"] == "serving")
    hammer = Hammer(url)
    try:
        eventually(lambda: len(hammer.answers) > 20)
        release(broker, first, canary=second)
        eventually(lambda: state(url)["version"] == release_reader.read_version(second))
        release(broker, second)  # promoted
        release(broker, second, canary=bad)
        refused = eventually(lambda: state(url)["refused"])
        assert refused["version"] == release_reader.read_version(bad)
        assert "deviates from the exporter's machine" in refused["reason"]
        assert state(url)["version"] == release_reader.read_version(second)
        release(broker, first)  # rolled back
        eventually(lambda: state(url)["version"] == release_reader.read_version(first))
        more = len(hammer.answers) + 20
        eventually(lambda: len(hammer.answers) > more)
    finally:
        hammer.end()
    assert not hammer.failures
    assert set(hammer.answers) == {
        (release_reader.read_version(first), "name 1"),
        (release_reader.read_version(second), "name 2"),
    }
    assert state(url)["failed"] == 0
    agent.send_signal(signal.SIGTERM)
    out, _ = agent.communicate(timeout=PATIENCE)
    assert agent.returncode == 0
    told = json.loads(out.splitlines()[-1])
    assert told["answered"] == len(hammer.answers)
    assert told["failed"] == 0


@pytest.mark.slow
def test_killed_agent_resumes_without_broker(tmp_path: Path, start: Start) -> None:
    first = version(tmp_path, 1)
    with brokers.start("127.0.0.1", 0, "auto", tmp_path / "broker") as started:
        release(started.address, first)
        agent = serve(
            start, "--broker", started.address, "--run", "spring", "--serve", "127.0.0.1:0"
        )
        url = read_address(tmp_path / "0.err")
        eventually(lambda: state(url)["state"] == "serving")
        agent.kill()
        agent.wait()
        gone = started.address
    serve(start, "--broker", gone, "--run", "spring", "--serve", "127.0.0.1:0")
    url = read_address(tmp_path / "1.err")
    found = ask(url)
    assert (found["version"], found["answers"][0]["name"]) == (
        release_reader.read_version(first),
        "name 1",
    )


def test_a_folder_is_served_without_a_broker(tmp_path: Path, start: Start) -> None:
    agent = serve(start, "--model", str(version(tmp_path, 1)), "--serve", "127.0.0.1:0")
    assert ask(read_address(tmp_path / "0.err"))["answers"][0]["name"] == "name 1"
    agent.send_signal(signal.SIGINT)
    assert agent.wait(PATIENCE) == 0


def test_requests_are_answered_over_a_real_broker(
    tmp_path: Path, broker: str, start: Start
) -> None:
    release(broker, version(tmp_path, 1))
    serve(start, "--broker", broker, "--mqtt")
    link = open_link(broker, "asker")
    try:
        link.subscribe(topics.answer("spring", "pi", "+"))
        log = tmp_path / "0.err"
        eventually(
            lambda: (
                f"publish requests to {topics.ask('spring', 'pi', 'ID')}, receive"
                in log.read_text()
                and "serving version" in log.read_text()
            )
        )
        link.publish(topics.ask("spring", "pi", "q1"), b'{"inputs": [[2, 1]]}')
        delivery = eventually(lambda: link.receive(0.2))
        assert delivery.topic == topics.answer("spring", "pi", "q1")
        assert json.loads(delivery.payload)["answers"][0]["name"] == "name 1"
    finally:
        link.close()


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--model", "none.onnx"], 3, "none.onnx: no such file"),
        (["--model", ".", "--serve", "0"], 8, "found no manifest.json"),
        (
            ["--broker", "127.0.0.1:9", "--run", "spring", "--serve", "127.0.0.1:0"],
            5,
            "127.0.0.1:9",
        ),
        (
            ["--serve", "0.0.0.0:0", "--broker", "127.0.0.1:9"],
            2,
            "other machines can reach this address",
        ),
    ],
)
def test_startup_error_is_one_line_and_exit_code(
    tmp_path: Path, start: Start, flags: list[str], code: int, words: str
) -> None:
    agent = serve(start, *flags)
    agent.communicate(timeout=PATIENCE)
    lines = (tmp_path / "0.err").read_text().splitlines()
    assert agent.returncode == code
    assert lines[-1].startswith("error: ")
    assert words in lines[-1]
