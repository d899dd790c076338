"""A service adopts releases as they arrive, keeps the last good one, and reports what it serves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.infer import serving_loop as services
from edge_agent.infer.engine import Engine
from edge_agent.infer.infer_options import InferRequest
from edge_agent.infer.serving_loop import make_serving_report, serve
from export import release_reader
from export.broker_publishing import announce, describe_version, publish
from federated.errors import FleetError, LinkError
from federated.wire import envelope, topics
from federated.wire.link import Link
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.release_messages import Release, Serving
from tests.support.handmade_variants import NAME, several
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_agent.infer.graph_trial.SECONDS", 0.02)
    monkeypatch.setattr(services, "TURN", 0.05)
    monkeypatch.setattr(services, "REPORT_INTERVAL", 0.2)
    monkeypatch.setattr(services, "RECONNECT", 0.1)


@dataclass
class Served:
    """A service in a thread, and the coordinator's side of its broker."""

    broker: MemoryBroker
    engine: Engine
    request: InferRequest
    connect: Callable[[], Link] | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    lines: list[str] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def start(self) -> None:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def end(self) -> None:
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()

    def release(self, folder: Path, *, canary: Path | None = None) -> None:
        link = MemoryLink(self.broker, "coordinator")
        known = Release("spring", describe_version(folder, "spring", {"pi": NAME}))
        publish(link, "spring", folder, {})
        if canary is not None:
            publish(link, "spring", canary, {})
            known = Release(
                "spring", known.stable, describe_version(canary, "spring", {"pi": NAME}), ("pi",)
            )
        announce(link, known)

    def report(self) -> Serving | None:
        data = self.broker.retained.get(topics.serving("spring", "pi"))
        found = envelope.decode(data) if data else None
        return found if isinstance(found, Serving) else None

    def serves(self, folder: Path) -> bool:
        found = self.report()
        return found is not None and found.version == release_reader.read_version(folder)

    def _run(self) -> None:
        try:
            serve(
                self.request,
                self.engine,
                self.stop,
                self.lines.append,
                connect=self.connect or (lambda: MemoryLink(self.broker, "infer-pi")),
            )
        except BaseException as error:
            self.errors.append(error)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    store = tmp_path / "store"
    request = InferRequest("pi", "memory", run="spring", store=store, mqtt=True)
    made = Served(MemoryBroker(), Engine(store / "@pi", threads=1), request)
    yield made
    if hasattr(made, "thread"):
        made.end()


def version(tmp_path: Path, number: int, **changes: Any) -> Path:
    return several(tmp_path / f"r{number}", ("fp32",), padding=bytes([number]), **changes)


def test_release_is_served_and_reported(tmp_path: Path, served: Served) -> None:
    first = version(tmp_path, 1)
    served.start()
    served.release(first)
    found = eventually(lambda: served.serves(first) and served.report())
    assert (found.agent, found.submodel, found.variant, found.provider, found.refused) == (
        "pi",
        NAME,
        "fp32",
        "CPUExecutionProvider",
        "",
    )
    assert 0 < found.p50 <= found.p90
    assert found.accuracy is None
    served.end()
    assert not served.errors
    assert served.report() is None, "an agent that ends takes its report away"


def test_newer_release_replaces_and_is_compared(tmp_path: Path, served: Served) -> None:
    first, second = version(tmp_path, 1), version(tmp_path, 2)
    served.start()
    served.release(first)
    eventually(lambda: served.serves(first))
    served.release(second)
    found = eventually(lambda: served.serves(second) and served.report())
    assert found.before == release_reader.read_version(first)
    assert found.p90_before > 0
    served.release(first)
    eventually(lambda: served.serves(first))


def test_failing_canary_is_refused_and_stable_stays(tmp_path: Path, served: Served) -> None:
    first, bad = version(tmp_path, 1), version(tmp_path, 2, off={"fp32": 9.0})
    served.start()
    served.release(first)
    eventually(lambda: served.serves(first))
    served.release(first, canary=bad)
    found = eventually(lambda: (report := served.report()) and report.refused and report)
    assert found.version == release_reader.read_version(first)
    assert found.refused == release_reader.read_version(bad)
    assert "deviates from the exporter's machine" in found.reason
    assert any("rejected " in line for line in served.lines)
    assert served.engine.answer(np.array([2, 1])).choice.version == release_reader.read_version(
        first
    )
    served.release(first)  # the canary is taken back
    eventually(lambda: (report := served.report()) and not report.refused)


def test_mqtt_requests_are_answered_and_counted(tmp_path: Path, served: Served) -> None:
    served.start()
    served.release(version(tmp_path, 1))
    eventually(lambda: any("answering over MQTT" in line for line in served.lines))
    eventually(served.report)
    asker = MemoryLink(served.broker, "asker")
    asker.subscribe(topics.answer("spring", "pi", "+"))
    asker.publish(topics.ask("spring", "pi", "q1"), b'{"inputs": [2, 1]}')
    delivery = eventually(lambda: asker.receive(0.1))
    assert json.loads(delivery.payload)["answers"][0]["label"] == 0
    eventually(lambda: (report := served.report()) and report.answered == 1)


def test_last_release_is_served_without_broker_until_it_returns(
    tmp_path: Path, served: Served
) -> None:
    first = version(tmp_path, 1)
    served.engine.adopt(first, NAME)
    fresh = Served(served.broker, Engine(tmp_path / "store" / "@pi", threads=1), served.request)
    there = threading.Event()

    def connect() -> Link:
        if not there.is_set():
            raise LinkError("no broker there")
        return MemoryLink(fresh.broker, "infer-pi")

    fresh.connect = connect
    fresh.start()
    try:
        eventually(
            lambda: any("no broker there; still serving version" in line for line in fresh.lines)
        )
        assert fresh.engine.choice is not None
        assert fresh.engine.choice.version == release_reader.read_version(first)
        second = version(tmp_path, 2)
        fresh.release(second)
        there.set()
        eventually(lambda: fresh.serves(second))
    finally:
        fresh.end()
    assert not fresh.errors


def test_service_ends_without_release_and_broker(served: Served) -> None:
    def connect() -> Link:
        raise LinkError("no broker there")

    served.connect = connect
    served.start()
    served.thread.join(60)
    assert [str(error) for error in served.errors] == ["no broker there"]


def test_several_runs_require_a_choice(tmp_path: Path, served: Served) -> None:
    served.request = InferRequest("pi", "memory", store=tmp_path / "store")
    link = MemoryLink(served.broker, "coordinator")
    found = describe_version(version(tmp_path, 1), "spring", {"pi": NAME})
    for run in ("spring", "autumn"):
        announce(link, Release(run, found))
    served.start()
    served.thread.join(60)
    assert isinstance(served.errors[0], FleetError)
    assert "choose one with --run" in str(served.errors[0])


def test_an_agent_without_a_release_reports_that_it_has_none() -> None:
    assert make_serving_report(Engine(None), "pi", "s1", "0123456789ab", "broken") == Serving(
        "pi", "s1", refused="0123456789ab", reason="broken"
    )
