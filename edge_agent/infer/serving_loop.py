"""Serve inference until stopped: follow the releases of a run, and switch to each new one while the
last one keeps answering.

Whatever happens to a broker, a release or this process, the last correct release keeps answering.
Does not import torch.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass

from edge_agent.access.http_access import describe_http_access
from edge_agent.infer.engine import Counts, Engine
from edge_agent.infer.graph_choice import Choice
from edge_agent.infer.infer_options import InferRequest
from edge_agent.infer.mqtt_server import MqttServer
from edge_agent.infer.requests_and_replies import describe_state
from edge_agent.releases.assigned_release import Arrival, Subscription
from edge_agent.releases.release_download import strip_folder
from edge_agent.releases.release_follower import Follower, open_follower_link
from federated.errors import EspalierError, ExportError, FleetError, LinkError
from federated.runtime.console import Say
from federated.runtime.listen_address import ListenAddress
from federated.runtime.service_manager import ServiceManager
from federated.system.process_limits import raise_descriptor_limit
from federated.wire import topics
from federated.wire.link import Delivery, Link
from federated.wire.release_messages import Serving

__all__ = ["make_serving_report", "serve"]

log = logging.getLogger(__name__)

TURN = 0.2  # seconds of waiting for the broker per turn of the loop
RECONNECT = 15.0  # seconds before reconnecting to a lost broker
REPORT_INTERVAL = 10.0  # seconds between two reports of the counts

Connect = Callable[[], Link]


class _Adopter:
    """Adopt arrivals in a thread, so that deliveries and requests are processed during the
    measurements. Only the newest arrival counts.
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
            found: Choice | EspalierError
            try:
                found = self._engine.adopt(arrival.folder, arrival.submodel, arrival.version)
            except EspalierError as error:
                found = error
            except Exception as error:
                # an unexpected error of a runtime: the present release keeps answering
                log.exception("version %s", arrival.version)
                message = " ".join(str(error).split())[:300]
                found = ExportError(f"{type(error).__name__}: {message}")
            self.done.put((arrival, found))


@dataclass
class _Service:
    """State of the loop that follows releases.

    request: options of the command
    engine: answers the requests
    adopter: adopts new versions
    stop: ends the service
    say: prints messages for the user
    manager: service manager, notified that the loop is alive
    session: identifies this process in reports
    refused, reason: the last rejected version, and why
    """

    request: InferRequest
    engine: Engine
    adopter: _Adopter
    stop: threading.Event
    say: Say
    manager: ServiceManager
    session: str
    refused: str = ""
    reason: str = ""

    def report(self) -> Serving:
        """Return this agent's report of what it serves."""
        return make_serving_report(
            self.engine, self.request.name, self.session, self.refused, self.reason
        )


def serve(
    request: InferRequest,
    engine: Engine,
    stop: threading.Event,
    say: Say,
    endpoint: tuple[ListenAddress, str] | None = None,
    connect: Connect | None = None,
) -> Counts:
    """Answer requests until `stop` is set, and return how many were answered and how many
    failed.

    endpoint: address of the HTTP server, and the token that clients must send
    connect: opens the link, to `request.broker` by default

    The service manager is notified that the agent is ready once it accepts requests, and that it is
    alive from the loop that follows releases.

    LinkError, FleetError: no broker, and nothing to serve without one. Also raises UsageError and
        ConfigError.
    """
    with ExitStack() as stack:
        manager = stack.enter_context(ServiceManager())
        stack.callback(engine.close)
        session = f"s{secrets.token_hex(6)}"
        service = _Service(request, engine, _Adopter(engine), stop, say, manager, session)
        broker = request.broker
        if broker is not None:
            _resume_release(engine, say)
        if endpoint is not None:
            from edge_agent.infer.http_server import HttpServer

            raise_descriptor_limit()
            server = HttpServer(
                engine,
                endpoint[0],
                lambda: describe_state(engine, service.refused, service.reason),
                endpoint[1],
            )
            stack.callback(server.close)
            say(f"listening at {server.url}: POST /infer, GET /health, GET /release")
        manager.ready(_summarise(engine))
        if broker is not None:
            _follow_releases(
                service,
                connect or (lambda: open_follower_link(broker, request.run, request.name)),
            )
        while not stop.wait(TURN):
            manager.ping(lambda: _summarise(engine))
    return engine.counts


def make_serving_report(
    engine: Engine, name: str, session: str, refused: str = "", reason: str = ""
) -> Serving:
    """Return an agent's report of what it serves."""
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


def _resume_release(engine: Engine, say: Say) -> None:
    """Serve the release that was last in use at once: the broker may be unavailable or slow."""
    try:
        choice = engine.resume()
    except ExportError as error:
        say(f"cannot resume a release: {error}")
        return
    if choice is not None:
        say(f"resuming with {_describe(choice)}")


def _follow_releases(service: _Service, connect: Connect) -> None:
    """Follow releases until `stop` is set. If the broker is lost, keep serving and reconnect."""
    engine, stop = service.engine, service.stop
    while not stop.is_set():
        try:
            with closing(connect()) as link:
                _follow_over_link(service, link)
        except (LinkError, FleetError) as error:
            if engine.choice is None:
                raise
            service.say(
                f"{error}; still serving version {engine.choice.version}; retrying in "
                f"{RECONNECT:.0f} s"
            )
            until = time.monotonic() + RECONNECT
            while time.monotonic() < until and not stop.wait(TURN):
                service.manager.ping(lambda: f"no broker; {_summarise(engine)}")


def _follow_over_link(service: _Service, link: Link) -> None:
    """Follow releases and answer requests over a link until `stop` is set. Raises LinkError,
    FleetError.
    """
    request = service.request
    questions: MqttServer | None = None

    def other(delivery: Delivery) -> None:
        if questions is not None:
            questions.hear(delivery)

    wanted = Subscription(
        request.run,
        request.name,
        request.submodel,
        request.store,
        service.session,
        describe_http_access(request.broker),
    )
    follower = Follower(link, wanted, other=other)
    reported, at = service.report(), time.monotonic()
    if service.engine.choice is not None:
        follower.report(reported)
    try:
        while not service.stop.is_set():
            service.manager.ping(lambda: _summarise(service.engine))
            arrival = follower.turn(TURN)
            if request.mqtt and questions is None and follower.run is not None:
                questions = _open_questions(service, link, follower.run)
            if arrival is not None:
                service.adopter.take(arrival)
            news = _report_adoption(service)
            now = service.report()
            if news or (now != reported and time.monotonic() - at >= REPORT_INTERVAL):
                follower.report(now)
                reported, at = now, time.monotonic()
    finally:
        if questions is not None:
            questions.close()
    follower.close()


def _open_questions(service: _Service, link: Link, run: str) -> MqttServer:
    """Start answering requests over MQTT."""
    name = service.request.name
    asked, answered = topics.ask(run, name, "ID"), topics.answer(run, name, "ID")
    questions = MqttServer(link, run, name, service.engine)
    service.say(
        f"answering over MQTT: publish requests to {asked}, receive answers at {answered} "
        "(ID: any word)"
    )
    return questions


def _report_adoption(service: _Service) -> bool:
    """Print whether an arrival was adopted or rejected, and return True if one was since the last
    call.
    """
    try:
        arrival, found = service.adopter.done.get_nowait()
    except queue.Empty:
        return False
    what = "canary " if arrival.canary else ""
    if isinstance(found, Choice):
        service.refused = service.reason = ""
        service.say(f"serving {what}{_describe(found)}")
    else:
        service.refused = arrival.version
        service.reason = strip_folder(service.request.store, str(found))
        service.say(f"rejected {what}version {arrival.version}: {found}")
    return True


def _summarise(engine: Engine) -> str:
    """Return the status line for the service manager."""
    return "no release yet" if engine.choice is None else f"serving version {engine.choice.version}"


def _describe(choice: Choice) -> str:
    best = choice.best
    took = f", p90 {1e3 * best.p90:.3g} ms" if best.runs else ""
    provider = best.provider.removesuffix("ExecutionProvider")
    return (
        f"version {choice.version}: {choice.run} round {choice.round}, {choice.submodel}, "
        f"{best.kind} on {provider}, threads {best.threads}{took}"
    )
