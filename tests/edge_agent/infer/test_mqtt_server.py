"""The MQTT server answers requests, and rejects invalid and excess ones with a reason."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.infer import mqtt_server as asked
from edge_agent.infer.engine import Answered, Engine
from edge_agent.infer.mqtt_server import MqttServer
from federated.wire import topics
from federated.wire.link import Delivery
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.handmade_variants import NAME, several


class Slow(Engine):
    """An engine that answers when the test allows it."""

    def __init__(self) -> None:
        super().__init__(None, threads=1)
        self.let, self.busy = threading.Event(), threading.Event()
        self.let.set()

    def answer(self, value: Any, name: str = "", most: int | None = None) -> Answered:
        self.busy.set()
        assert self.let.wait(60)
        return super().answer(value, name, most)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slow:
    monkeypatch.setattr("edge_agent.infer.graph_trial.SECONDS", 0.02)
    made = Slow()
    made.adopt(several(tmp_path / "release", ("fp32",)), NAME)
    return made


@pytest.fixture
def asker() -> tuple[MemoryBroker, MemoryLink]:
    broker = MemoryBroker()
    link = MemoryLink(broker, "asker")
    link.subscribe(topics.answer("spring", "pi", "+"))
    return broker, link


@pytest.fixture
def questions(engine: Slow, asker: tuple[MemoryBroker, MemoryLink]) -> Iterator[MqttServer]:
    link = MemoryLink(asker[0], "pi")
    made = MqttServer(link, "spring", "pi", engine, waiting=2)
    stop = threading.Event()

    def hear() -> None:
        while not stop.is_set():
            if (delivery := link.receive(0.05)) is not None:
                made.hear(delivery)

    thread = threading.Thread(target=hear)
    thread.start()
    yield made
    engine.let.set()
    stop.set()
    thread.join()
    made.close()


def answers(link: MemoryLink, count: int) -> dict[str, dict[str, Any]]:
    """Return the next answers by request id."""
    found, until = dict[str, dict[str, Any]](), time.monotonic() + 60
    while len(found) < count and time.monotonic() < until:
        delivery = link.receive(0.1)
        place = topics.parse(delivery.topic) if delivery is not None else None
        if place is not None and delivery is not None:
            found[place.question] = json.loads(delivery.payload)
    return found


def ask(link: MemoryLink, question: str, inputs: object) -> None:
    link.publish(topics.ask("spring", "pi", question), json.dumps({"inputs": inputs}).encode())


def test_request_is_answered_under_its_id(
    questions: MqttServer, asker: tuple[MemoryBroker, MemoryLink]
) -> None:
    ask(asker[1], "a", [[2, 1], [0, 0]])
    (found,) = answers(asker[1], 1).values()
    assert (found["run"], found["round"], found["submodel"], found["variant"]) == (
        "spring",
        7,
        NAME,
        "fp32",
    )
    assert [one["label"] for one in found["answers"]] == [0, 0]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"{", "request a: expected JSON"),
        # 500 MB as an array
        (
            json.dumps({"inputs": ["a" * 500_000, *[""] * 500]}).encode(),
            "got `str` - at `$.inputs[0]`",
        ),
        (b'{"inputs": [[1, 2, 3]]}', "request a: expected raw examples of shape"),
        (
            json.dumps({"inputs": np.zeros((257, 2), int).tolist()}).encode(),
            "expected at most 256 examples at a time, found 257",
        ),
        (
            b" " * (asked.MAX_BYTES + 1),
            "expected a request of at most 1048576 bytes, found 1048577",
        ),
    ],
)
def test_invalid_request_is_refused(
    questions: MqttServer, asker: tuple[MemoryBroker, MemoryLink], payload: bytes, message: str
) -> None:
    asker[1].publish(topics.ask("spring", "pi", "a"), payload)
    assert message in answers(asker[1], 1)["a"]["error"]


def test_failing_request_does_not_stop_the_next(
    questions: MqttServer, asker: tuple[MemoryBroker, MemoryLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*arguments: object) -> None:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(asked, "parse_inputs", short)
        ask(asker[1], "a", [2, 1])
        assert answers(asker[1], 1) == {"a": {"error": "request a: MemoryError"}}
    ask(asker[1], "b", [2, 1])
    assert "answers" in answers(asker[1], 1)["b"]


def test_answer_too_large_for_the_broker_is_refused(engine: Slow) -> None:
    broker = MemoryBroker(max_payload=1024)
    link, asker = MemoryLink(broker, "pi"), MemoryLink(broker, "asker")
    asker.subscribe(topics.answer("spring", "pi", "+"))
    questions = MqttServer(link, "spring", "pi", engine)
    questions.hear(
        Delivery(topics.ask("spring", "pi", "a"), json.dumps({"inputs": [[2, 1]] * 100}).encode())
    )
    assert "the broker accepts at most 1024" in answers(asker, 1)["a"]["error"]
    questions.close()


def test_oldest_request_is_refused_when_too_many_wait(
    questions: MqttServer, engine: Slow, asker: tuple[MemoryBroker, MemoryLink]
) -> None:
    engine.let.clear()
    ask(asker[1], "first", [2, 1])
    assert engine.busy.wait(60)
    for name in ("oldest", "middle", "newest"):
        ask(asker[1], name, [2, 1])
    assert answers(asker[1], 1) == {
        "oldest": {"error": "too many requests: 2 newer ones are waiting"}
    }
    engine.let.set()
    assert {name: "answers" in found for name, found in answers(asker[1], 3).items()} == {
        "first": True,
        "middle": True,
        "newest": True,
    }


def test_retained_empty_and_foreign_messages_are_ignored(
    engine: Slow, asker: tuple[MemoryBroker, MemoryLink]
) -> None:
    questions = MqttServer(MemoryLink(asker[0], "pi"), "spring", "pi", engine)
    body = b'{"inputs": [2, 1]}'
    assert questions.hear(Delivery(topics.ask("spring", "pi", "a"), body, retained=True))
    assert questions.hear(Delivery(topics.ask("spring", "pi", "a"), b""))
    assert not questions.hear(Delivery(topics.ask("autumn", "pi", "a"), body))
    assert not questions.hear(Delivery(topics.answer("spring", "pi", "a"), body))
    assert not questions.hear(Delivery("other/topic", body))
    questions.close()
    assert asker[1].receive(0.05) is None


def test_closing_answers_waiting_requests(
    engine: Slow, asker: tuple[MemoryBroker, MemoryLink]
) -> None:
    questions = MqttServer(MemoryLink(asker[0], "pi"), "spring", "pi", engine)
    engine.let.clear()
    for name in ("a", "b"):
        questions.hear(Delivery(topics.ask("spring", "pi", name), b'{"inputs": [2, 1]}'))
    threading.Timer(0.1, engine.let.set).start()
    questions.close()
    assert answers(asker[1], 2).keys() == {"a", "b"}
