"""Serve inference over MQTT: clients publish JSON at `topics.ask` and receive the answer at
`topics.answer` under the same request id. Does not import torch.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading

import msgspec

from edge_agent.infer.engine import Engine
from edge_agent.infer.requests_and_replies import MAX_EXAMPLES, make_reply, parse_inputs
from federated.errors import EspalierError, LinkError
from federated.wire import topics
from federated.wire.link import Delivery, Link

__all__ = ["MAX_BYTES", "MqttServer"]

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 20  # maximum size of a request in bytes
# maximum number of waiting requests; beyond it the oldest is rejected, since its client is the
# closest to its timeout
MAX_WAITING = 32


class MqttServer:
    """Answer the requests that the link delivers to `hear`, in its own thread, until closed."""

    def __init__(
        self, link: Link, run: str, agent: str, engine: Engine, *, waiting: int = MAX_WAITING
    ) -> None:
        self._link, self._run, self._agent, self._engine = link, run, agent, engine
        self._pattern = topics.ask(run, agent, "+")
        self._queue = queue.SimpleQueue[tuple[str, bytes] | None]()  # None ends the thread
        self._most = waiting
        self._thread = threading.Thread(target=self._work, name="questions", daemon=True)
        self._thread.start()
        link.subscribe(self._pattern)

    def hear(self, delivery: Delivery) -> bool:
        """Queue a delivery if it is a request to this agent, and return whether it is. A
        retained request is outdated and an empty one clears it: neither is answered.
        """
        place = topics.parse(delivery.topic)
        if (
            place is None
            or place.kind != "ask"
            or (place.run, place.agent) != (self._run, self._agent)
        ):
            return False
        if not delivery.payload or delivery.retained:
            return True
        if len(delivery.payload) > MAX_BYTES:
            self._refuse(
                place.question,
                f"expected a request of at most {MAX_BYTES} bytes, found {len(delivery.payload)}",
            )
            return True
        self._queue.put((place.question, delivery.payload))
        if self._queue.qsize() > self._most:
            with contextlib.suppress(queue.Empty):
                if late := self._queue.get_nowait():
                    self._refuse(late[0], f"too many requests: {self._most} newer ones are waiting")
        return True

    def close(self) -> None:
        """Stop accepting requests, and answer the waiting ones."""
        try:
            self._link.unsubscribe(self._pattern)
        except LinkError as error:
            log.debug("while closing: %s", error)
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (request := self._queue.get()) is not None:
            self._answer(*request)

    def _answer(self, question: str, payload: bytes) -> None:
        name = f"request {question}"
        try:
            found = msgspec.json.encode(
                make_reply(
                    self._engine.answer(
                        parse_inputs(payload, name, self._engine.session), name, MAX_EXAMPLES
                    )
                )
            )
        except EspalierError as error:
            self._refuse(question, str(error))
        except Exception as error:  # one failed request must not stop the next ones
            log.exception("%s", name)
            self._refuse(question, f"{name}: {type(error).__name__}")
        else:
            if len(found) > self._link.max_payload:
                self._refuse(
                    question,
                    f"{name}: the answer has {len(found)} bytes; the broker accepts at most "
                    f"{self._link.max_payload}",
                )
            else:
                self._publish(question, found)

    def _refuse(self, question: str, reason: str) -> None:
        self._publish(question, msgspec.json.encode({"error": reason}))

    def _publish(self, question: str, payload: bytes) -> None:
        try:
            self._link.publish(topics.answer(self._run, self._agent, question), payload)
        except LinkError as error:
            log.warning("cannot answer request %s: %s", question, error)
