"""An agent's life: load the data, find a run, measure, join, take part until it is over.

worker.load -> find_run -> worker.measure -> Participant.join -> turn, turn, ... -> leave

Between two turns the agent looks whether it must measure itself again.
"""

from __future__ import annotations

import logging
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.device import state_folder
from edge_agent.device.conditions import Conditions
from edge_agent.device.drift import Watch
from edge_agent.device.limits import available_cpus, memory_limit
from edge_agent.join.worker import Job, Worker
from federated.device.participant import Equipment, Participant
from federated.device.spool import LIMIT, Spool
from federated.errors import (
    EspalierError,
    FleetError,
    LinkError,
    ProtocolMismatch,
    StoreError,
    WireError,
)
from federated.runtime.clock_jumps import Jumps
from federated.runtime.console import Say
from federated.runtime.service_manager import Manager
from federated.task import Card, Profile
from federated.wire import envelope, messages, topics
from federated.wire.link import Link
from federated.wire.links.catalogue import open_link

__all__ = ["JoinRequest", "Joined", "find_run", "join", "say_nothing", "take_part"]

log = logging.getLogger(__name__)


def say_nothing(text: str) -> None:
    """For callers that want no words."""


@dataclass(frozen=True)
class Joined:
    """How a membership ended. updates: accepted ones; reason: the coordinator's words, or the
    agent's own.
    """

    agent: str
    run: str
    updates: int
    reason: str
    refused: bool


def find_run(
    link: Link,
    name: str | None,
    wait: float,
    say: Say = say_nothing,
    alive: Callable[[], None] = lambda: None,
) -> messages.Run:
    """The run to join: `name`, or the only one that the broker knows of. alive: called while it
    looks.

    Raises FleetError when there is none within `wait` seconds, or several and no name.
    """
    pattern = topics.run(name) if name else topics.any_run()
    link.subscribe(pattern)
    found: dict[str, messages.Run] = {}
    start = time.monotonic()
    settle = start + wait
    said, mismatch = False, ""
    while (now := time.monotonic()) < settle:
        alive()
        delivery = link.receive(min(0.5, settle - now))
        if delivery is not None and delivery.payload and not delivery.topic.startswith("$"):
            try:
                message = envelope.decode(delivery.payload)
            except WireError as error:
                log.warning("ignored a run on %s: %s", delivery.topic, error)
                mismatch = (
                    f"{delivery.topic}: {error}"
                    if isinstance(error, ProtocolMismatch)
                    else mismatch
                )
                continue
            if isinstance(message, messages.Run):
                found[message.run] = message
                settle = min(settle, time.monotonic() + (0.0 if name else 0.5))  # others may follow
        elif not said and now - start > 1:
            said = True
            say(
                f"waiting for a coordinator{f' of run {name!r}' if name else ''} (up to "
                f"{wait:.0f} s)"
            )
    link.unsubscribe(pattern)
    if not found and mismatch:
        raise FleetError(f"no run that this agent can join: {mismatch}")
    if not found:
        raise FleetError(
            f"no {f'run named {name!r}' if name else 'run'} at this broker after "
            f"{wait:.0f} s: start a coordinator (coordinator start --broker ...)"
        )
    if len(found) > 1:
        raise FleetError(
            f"several runs at this broker: {', '.join(sorted(found))}; choose one with --run"
        )
    return next(iter(found.values()))


@dataclass(frozen=True)
class JoinRequest:
    """How an agent takes part.

    job: what its training process does.
    broker: address of the broker.
    run: name of the run to join; None for the only one at the broker.
    wait: seconds to wait for a run.
    spool: folder of what outlives the agent, one below it for each run and name; None for the
        default.
    spool_limit: bytes of weights and updates in it.
    when: the conditions under which the device trains (see `edge_agent.device.conditions`).
    fresh: whether to measure the device even if its timings are known.
    """

    job: Job
    broker: str
    run: str | None
    wait: float
    spool: Path | None = None
    spool_limit: int = LIMIT
    when: str = ""
    fresh: bool = False


def join(request: JoinRequest, stop: threading.Event, say: Say = say_nothing) -> Joined:
    """Load the data, measure the device, and take part until the run is over or `stop` is set.
    Raises as its parts do.
    """
    job, session = request.job, secrets.token_hex(8)
    pause = Conditions(request.when)
    with ExitStack() as stack:
        manager = stack.enter_context(Manager())  # before the worker, which must not inherit it
        worker = Worker(job)
        stack.callback(worker.close)
        card = worker.load()
        say(describe(job, card, worker.limits))
        manager.ready("looking for a run")
        run = _find(request, f"scout-{job.name}-{session[:4]}", say, manager)
        # before the link: of two agents with one name, the first stays
        spool = stack.enter_context(closing(_spool(request, run, stack, say)))
        link = stack.enter_context(closing(_link(request, run, session)))
        equipment = Equipment(
            lambda card: measure(worker, card, link, job.name, say, fresh=request.fresh),
            worker,
            spool,
            pause,
        )
        participant = Participant(link, run, job.name, session, equipment)
        watch = Watch(lambda: bounds(worker))

        def between() -> None:
            manager.alive(lambda: _standing(participant))
            remeasure(participant, worker, watch, say)

        return take_part(participant, stop, say, between)


def _find(request: JoinRequest, client: str, say: Say, manager: Manager) -> messages.Run:
    """`find_run` over a link of its own, because the will of the agent's link names the run."""
    scout = open_link(request.broker, client)
    try:
        return find_run(
            scout,
            request.run,
            request.wait,
            say,
            lambda: manager.alive(lambda: "looking for a run"),
        )
    finally:
        scout.close()


def _link(request: JoinRequest, run: messages.Run, session: str) -> Link:
    """The agent's link; its will says that the agent is gone."""
    name = request.job.name
    gone = envelope.encode(messages.Status(name, session, False))
    return open_link(request.broker, f"{run.run}-{name}", (topics.status(run.run, name), gone))


def _spool(request: JoinRequest, run: messages.Run, stack: ExitStack, say: Say) -> Spool:
    """This agent's spool of a run. If the default folder cannot be used, a temporary one that ends
    with the process. Raises StoreError if a folder that was given cannot be used.
    """
    root, name = request.spool, request.job.name
    try:
        base = root if root is not None else state_folder.folder() / "spool"
        (base / run.run).mkdir(parents=True, exist_ok=True)
    except (OSError, StoreError) as error:
        if root is not None:
            raise StoreError(
                f"--spool: {root} cannot be used: "
                f"{error.strerror if isinstance(error, OSError) else error}"
            ) from error
        say(f"nothing of this agent will outlive its process: {error}; name a folder by --spool")
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="espalier-")))
    spool = Spool(base / run.run / name, lasting=True, limit=request.spool_limit)
    spool.tidy(base.glob(f"*/{name}"))
    return spool


def _standing(participant: Participant) -> str:
    """One line for the service manager."""
    doing = participant.paused or participant.state
    return f"run {participant.run.run}: {doing}, {participant.finished} updates"


def bounds(worker: Worker) -> tuple[float, float]:
    """Processors and bytes that the training process may use at this moment; what the owner
    allowed, while there is no such process.
    """
    limits = worker.job.limits
    try:
        return available_cpus(limits, worker.pid), memory_limit(limits, worker.pid)
    except OSError:
        return available_cpus(limits), memory_limit(limits)


def remeasure(participant: Participant, worker: Worker, watch: Watch, say: Say) -> None:
    """Measures the device again, between two tasks, where its watch says that what it measured no
    longer holds; tells the coordinator.
    """
    if not (why := watch.look()) or participant.state != "idle" or participant.paused:
        return
    say(f"measuring again: {why}")
    try:
        found = worker.measure(msgspec.to_builtins(participant.run), fresh=watch.fresh)
    except EspalierError as error:  # the old profile stays, and so does the agent
        log.error("could not measure again: %s", error)
        worker.poll()  # buries the training process where it died of this, and starts another
    else:
        old = participant.profile
        participant.remeasured(
            msgspec.convert(
                {**found, "agent": old.agent, "uplink": old.uplink, "chunk": old.chunk}, Profile
            )
        )
        say(told(participant.profile))
    watch.reset()


def measure(
    worker: Worker, run: messages.Run, link: Link, name: str, say: Say, *, fresh: bool = False
) -> Profile:
    """The whole profile: what the worker measures of the device, and what the link measures of
    itself.
    """
    if run.calibration:
        say(f"measuring this device for run '{run.run}'")
    measured: dict[str, Any] = worker.measure(msgspec.to_builtins(run), fresh=fresh)
    chunk, uplink = link.probe(topics.probe(run.run, name))
    profile = msgspec.convert(
        {**measured, "agent": name, "uplink": uplink, "chunk": chunk}, Profile
    )
    say(told(profile))
    return profile


def told(profile: Profile) -> str:
    """What a person is told of a measured device."""
    steps = ", ".join(f"{t.submodel.name} {t.seconds * 1000:.0f} ms" for t in profile.timings)
    return (
        (f"{profile.board.model}: " if profile.board.model else "")
        + f"{profile.cpus:g} cpus, {profile.memory // 10**6} MB to train in, uplink "
        f"{profile.uplink / 1e6:.0f} MB/s" + (f", a step takes {steps}" if steps else "")
    )


def describe(job: Job, card: Card, limits: str) -> str:
    """What the agent says of its data and limits before it joins."""
    what = {
        "class": "classes",
        "value": "values" if card.outputs > 1 else "value",
        "token": "tokens",
    }[card.target]
    return (
        f"agent {job.name}: {card.examples} examples of {card.name} to learn from, "
        f"{card.held_out} held out; {card.outputs} {what}, "
        f"shape {'x'.join(map(str, card.inputs))}; limits: {limits}"
    )


def take_part(
    participant: Participant,
    stop: threading.Event,
    say: Say = say_nothing,
    between: Callable[[], None] = lambda: None,
) -> Joined:
    """Joins, turns until the run is over or `stop` is set, and leaves. between: called after every
    turn.
    """
    participant.join()
    say(f"joined run '{participant.run.run}' as {participant.name}")
    doing, paused, jumps = "", "", Jumps()
    try:
        while not stop.is_set() and participant.turn(0.05):
            if participant.state != doing:
                doing = participant.state
                log.info("%s: %s", participant.name, doing)
            if jumped := jumps.look():
                log.warning("%s", jumped)
            if participant.paused != paused:
                paused = participant.paused
                say(f"pausing: {paused}" if paused else "going on")
            between()
    finally:
        try:
            participant.leave()
        except LinkError as error:
            log.info("could not sign off: %s", error)
    reason = participant.over or "stopped"
    return Joined(
        participant.name, participant.run.run, participant.finished, reason, participant.refused
    )
