"""An agent that answers until it is stopped: it follows the releases of its run, takes each up
while it goes on with the last, and says so.

Whatever happens to a broker, a release or this process, what was right last goes on answering. No
torch here.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from edge_agent.infer.address import Address
from edge_agent.infer.arrival import within
from edge_agent.infer.engine import Counts, Engine
from edge_agent.infer.follow import Arrival, Follower, link_of
from edge_agent.infer.graph_choice import Choice
from edge_agent.infer.mqtt_questions import Questions
from edge_agent.infer.replies import state
from federated.errors import EspalierError, ExportError, FleetError, LinkError
from federated.runtime.console import Say
from federated.runtime.service_manager import Manager
from federated.wire import topics
from federated.wire.delivery_queue import Delivery
from federated.wire.link import Link
from federated.wire.release_files import Serving

__all__ = ["Plan", "serve", "serving"]

log = logging.getLogger(__name__)

TURN = 0.2  # seconds of hearing the broker, after which what else there is to do is looked at
RETRY = 15.0  # seconds until a broker that is gone is tried again
TELL = 10.0  # seconds between two reports of how much was answered

Connect = Callable[[], Link]


@dataclass(frozen=True)
class Plan:
    """What to serve, and where. broker: whose releases to follow, empty: none; submodel: empty for
    the agent's own.

    address: of HTTP, None: none. token: what askers must know. mqtt: whether to answer questions at
    the broker.
    """

    name: str
    broker: str = ""
    run: str | None = None
    submodel: str | None = None
    store: Path = Path()
    address: Address | None = None
    token: str = ""
    mqtt: bool = False


@dataclass
class _Refusal:
    """The last version that was not taken up, and why."""

    version: str = ""
    reason: str = ""


class _Adopter:
    """Takes arrivals up in a thread of its own, so that the broker is heard, and questions
    answered, while it measures. The newest counts.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[Arrival, Choice | EspalierError]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="adopter", daemon=True).start()

    def take(self, arrival: Arrival) -> None:
        self._arrivals.put(arrival)

    def _work(self) -> None:
        while True:
            arrival = self._arrivals.get()
            while not self._arrivals.empty():
                arrival = self._arrivals.get()
            try:
                self.done.put(
                    (arrival, self._engine.adopt(arrival.folder, arrival.submodel, arrival.version))
                )
            except EspalierError as error:
                self.done.put((arrival, error))
            except Exception as error:
                # of a runtime, in words of its own: the present release goes on
                log.exception("version %s", arrival.version)
                self.done.put(
                    (
                        arrival,
                        ExportError(
                            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                        ),
                    )
                )


def serve(
    plan: Plan, engine: Engine, stop: threading.Event, say: Say, connect: Connect | None = None
) -> Counts:
    """Answers until `stop` is set; what became of the questions. connect: makes the link, for
    `plan.broker` by default.

    A service manager hears that it is ready once it can be asked, and that it is alive from the
    loop that follows releases.

    Raises LinkError and FleetError where there is neither a broker nor anything to serve without;
    UsageError, ConfigError.
    """
    refusal = _Refusal()
    with ExitStack() as stack:
        manager = stack.enter_context(Manager())
        stack.callback(engine.close)
        if plan.broker:
            _resume(engine, say)
        if plan.address is not None:
            from edge_agent.infer.http_server import Server

            server = Server(
                engine,
                plan.address,
                lambda: state(engine, refusal.version, refusal.reason),
                plan.token,
            )
            stack.callback(server.close)
            say(f"listening at {server.url}: POST /infer, GET /health, GET /release")
        manager.ready(_summary(engine))
        if plan.broker:
            adopter = _Adopter(engine)
            _stay(
                plan,
                engine,
                adopter,
                refusal,
                stop,
                say,
                connect or (lambda: link_of(plan.broker, plan.run, plan.name)),
                manager,
            )
        while not stop.wait(TURN):
            manager.alive(lambda: _summary(engine))
    return engine.counts


def serving(
    engine: Engine, name: str, session: str, refused: str = "", reason: str = ""
) -> Serving:
    """What an agent reports of what it answers with."""
    choice, past, counts = engine.choice, engine.past, engine.counts
    tallies = {
        "answered": counts.answered,
        "failed": counts.failed,
        "refused": refused,
        "reason": reason,
    }
    if choice is None:
        return Serving(name, session, **tallies)  # type: ignore[arg-type]  # a dict of mixed values
    best = choice.best
    before = (
        {}
        if past is None
        else {"before": past.version, "p90_before": past.p90, "accuracy_before": past.accuracy}
    )
    return Serving(
        name,
        session,
        choice.version,
        choice.submodel,
        best.kind,
        best.provider,
        best.p50,
        best.p90,
        best.accuracy,
        choice.examples if best.accuracy is not None else 0,
        **before,  # type: ignore[arg-type]
        **tallies,  # type: ignore[arg-type]
    )


def _resume(engine: Engine, say: Say) -> None:
    """What was in use last answers at once: the broker may be away, or slow."""
    try:
        choice = engine.resume()
    except ExportError as error:
        say(f"nothing to go on with: {error}")
        return
    if choice is not None:
        say(f"goes on with {_told(choice)}")


def _stay(
    plan: Plan,
    engine: Engine,
    adopter: _Adopter,
    refusal: _Refusal,
    stop: threading.Event,
    say: Say,
    connect: Connect,
    manager: Manager,
) -> None:
    """Follows releases; where the broker is gone, serves what there is, and comes back."""
    session = f"s{secrets.token_hex(6)}"
    while not stop.is_set():
        try:
            link = connect()
            try:
                _follow(plan, engine, adopter, refusal, stop, say, link, session, manager)
            finally:
                link.close()
        except (LinkError, FleetError) as error:
            if engine.choice is None:
                raise
            say(
                f"{error}; goes on with version {engine.choice.version}, and tries "
                f"again in {RETRY:.0f} s"
            )
            until = time.monotonic() + RETRY
            while time.monotonic() < until and not stop.wait(TURN):
                manager.alive(lambda: f"no broker; {_summary(engine)}")


def _follow(
    plan: Plan,
    engine: Engine,
    adopter: _Adopter,
    refusal: _Refusal,
    stop: threading.Event,
    say: Say,
    link: Link,
    session: str,
    manager: Manager,
) -> None:
    """Hears the broker until `stop` is set. Raises LinkError, FleetError."""
    questions: Questions | None = None

    def other(delivery: Delivery) -> None:
        if questions is not None:
            questions.hear(delivery)

    follower = Follower(
        link, plan.run, plan.name, plan.submodel, plan.store, session=session, other=other
    )
    told, at = (
        serving(engine, plan.name, session, refusal.version, refusal.reason),
        time.monotonic(),
    )
    if engine.choice is not None:
        follower.report(told)
    try:
        while not stop.is_set():
            manager.alive(lambda: _summary(engine))
            arrival = follower.turn(TURN)
            if plan.mqtt and questions is None and follower.run is not None:
                questions = Questions(link, follower.run, plan.name, engine)
                asked, answered = (
                    of(follower.run, plan.name, "ID") for of in (topics.ask, topics.answer)
                )
                say(f"answers at the broker: publish to {asked}, hear {answered} (ID: any word)")
            if arrival is not None:
                adopter.take(arrival)
            news = _news(adopter, refusal, plan.store, say)
            now = serving(engine, plan.name, session, refusal.version, refusal.reason)
            if news or (now != told and time.monotonic() - at >= TELL):
                follower.report(now)
                told, at = now, time.monotonic()
    finally:
        if questions is not None:
            questions.close()
    follower.close()


def _news(adopter: _Adopter, refusal: _Refusal, store: Path, say: Say) -> bool:
    """Whether something became of an arrival; notes it, and tells people."""
    try:
        arrival, found = adopter.done.get_nowait()
    except queue.Empty:
        return False
    what = "canary " if arrival.canary else ""
    if isinstance(found, Choice):
        refusal.version, refusal.reason = "", ""
        say(f"answers with {what}{_told(found)}")
    else:
        refusal.version, refusal.reason = arrival.version, within(store, str(found))
        say(f"{what}version {arrival.version} is not taken up: {found}")
    return True


def _summary(engine: Engine) -> str:
    """What a service manager is told."""
    return (
        "no release yet"
        if engine.choice is None
        else f"answers with version {engine.choice.version}"
    )


def _told(choice: Choice) -> str:
    best = choice.best
    took = f", p90 {1e3 * best.p90:.3g} ms" if best.runs else ""
    provider = best.provider.removesuffix("ExecutionProvider")
    return (
        f"version {choice.version}: {choice.run} round {choice.round}, {choice.submodel}, "
        f"{best.kind} on {provider}, threads {best.threads}{took}"
    )
