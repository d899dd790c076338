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

from edge_agent.access.http_address import Address
from edge_agent.infer.arrival import within
from edge_agent.infer.engine import Counts, Engine
from edge_agent.infer.follow import Arrival, Follower, Subscription, link_of
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


@dataclass(frozen=True)
class _Service:
    """What the loop that follows releases uses.

    plan: what to serve, and where.
    engine: answers the questions.
    adopter: takes up new versions.
    refusal: the last version that was refused.
    stop: ends the service.
    say: tells the user.
    manager: the service manager, which hears that the loop is alive.
    session: names this process in reports.
    """

    plan: Plan
    engine: Engine
    adopter: _Adopter
    refusal: _Refusal
    stop: threading.Event
    say: Say
    manager: Manager
    session: str

    def report(self) -> Serving:
        """What this agent reports of what it serves."""
        refused = self.refusal
        return serving(self.engine, self.plan.name, self.session, refused.version, refused.reason)

    def summarise(self) -> str:
        """One line for the service manager."""
        return _summary(self.engine)


def serve(
    plan: Plan, engine: Engine, stop: threading.Event, say: Say, connect: Connect | None = None
) -> Counts:
    """Answer questions until `stop` is set; return how many were answered, and how many failed.
    connect: makes the link, to `plan.broker` by default.

    The service manager hears that the agent is ready once it can be asked, and that it is alive
    from the loop that follows releases.

    Raises LinkError and FleetError if there is no broker and nothing to serve without one;
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
            session = f"s{secrets.token_hex(6)}"
            service = _Service(plan, engine, _Adopter(engine), refusal, stop, say, manager, session)
            _stay(service, connect or (lambda: link_of(plan.broker, plan.run, plan.name)))
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


def _stay(service: _Service, connect: Connect) -> None:
    """Follow releases until `stop` is set. If the broker is gone, reconnect and serve meanwhile."""
    engine, stop = service.engine, service.stop
    while not stop.is_set():
        try:
            link = connect()
            try:
                _follow(service, link)
            finally:
                link.close()
        except (LinkError, FleetError) as error:
            if engine.choice is None:
                raise
            service.say(
                f"{error}; goes on with version {engine.choice.version}, and tries "
                f"again in {RETRY:.0f} s"
            )
            until = time.monotonic() + RETRY
            while time.monotonic() < until and not stop.wait(TURN):
                service.manager.alive(lambda: f"no broker; {service.summarise()}")


def _follow(service: _Service, link: Link) -> None:
    """Follow releases and answer questions over a link until `stop` is set. Raises LinkError,
    FleetError.
    """
    plan = service.plan
    questions: Questions | None = None

    def other(delivery: Delivery) -> None:
        if questions is not None:
            questions.hear(delivery)

    wanted = Subscription(plan.run, plan.name, plan.submodel, plan.store, service.session)
    follower = Follower(link, wanted, other=other)
    told, at = service.report(), time.monotonic()
    if service.engine.choice is not None:
        follower.report(told)
    try:
        while not service.stop.is_set():
            service.manager.alive(service.summarise)
            arrival = follower.turn(TURN)
            if plan.mqtt and questions is None and follower.run is not None:
                questions = _open_questions(service, link, follower.run)
            if arrival is not None:
                service.adopter.take(arrival)
            news = _news(service)
            now = service.report()
            if news or (now != told and time.monotonic() - at >= TELL):
                follower.report(now)
                told, at = now, time.monotonic()
    finally:
        if questions is not None:
            questions.close()
    follower.close()


def _open_questions(service: _Service, link: Link, run: str) -> Questions:
    """Answer questions at the broker from now on."""
    name = service.plan.name
    asked, answered = topics.ask(run, name, "ID"), topics.answer(run, name, "ID")
    questions = Questions(link, run, name, service.engine)
    service.say(f"answers at the broker: publish to {asked}, hear {answered} (ID: any word)")
    return questions


def _news(service: _Service) -> bool:
    """Whether an arrival was taken up or refused since the last call; tell the user of it."""
    try:
        arrival, found = service.adopter.done.get_nowait()
    except queue.Empty:
        return False
    refusal, what = service.refusal, "canary " if arrival.canary else ""
    if isinstance(found, Choice):
        refusal.version, refusal.reason = "", ""
        service.say(f"answers with {what}{_told(found)}")
    else:
        refusal.version = arrival.version
        refusal.reason = within(service.plan.store, str(found))
        service.say(f"{what}version {arrival.version} is not taken up: {found}")
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
