"""Take part in a run: reach the broker, load the data, find the run, measure the device, join, and
train until the run ends.

open_link -> worker.load -> find_run -> worker.measure -> AgentEventLoop.join -> turn, ... -> leave

Between two turns the agent checks whether it must measure the device again.
"""

from __future__ import annotations

import logging
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from edge_agent.access.http_access import describe_http_access
from edge_agent.device import state_folder
from edge_agent.device.background_reading import BackgroundReading
from edge_agent.device.energy import TrainingEnergy
from edge_agent.device.measurement_drift import Watch
from edge_agent.device.monthly_use import MonthlyUse
from edge_agent.device.process_limits import count_cpus, find_memory_limit
from edge_agent.device.start_record import remove_start, write_start
from edge_agent.device.training_conditions import Conditions
from edge_agent.join.training_process_control import Job, Worker
from federated.device.agent_event_loop import AgentEventLoop, Equipment
from federated.device.agent_run_files import LIMIT, Spool
from federated.device.agent_state import describe_activity
from federated.device.trainers.catalogue import DEFAULT
from federated.errors import (
    EspalierError,
    FleetError,
    LinkError,
    ProtocolMismatch,
    StoreError,
    WireError,
    describe_os_error,
)
from federated.runtime.clock_jumps import JumpDetector
from federated.runtime.console import Say, show_progress
from federated.runtime.service_manager import ServiceManager
from federated.runtime.unit_formatting import format_count
from federated.system.memory_allocation import keep_chunks
from federated.task import Card, Profile
from federated.wire import envelope, messages, topics
from federated.wire.link import Link
from federated.wire.links.catalogue import open_link

__all__ = ["JoinRequest", "find_run", "join", "say_nothing", "take_part"]

log = logging.getLogger(__name__)

LINK_LOST = "lost the connection to the broker; trying to reconnect"
# condition -> file of its count, and the amount (bytes, joules) that is written at once
COUNTED = {
    "traffic": (state_folder.TRAFFIC, 1 << 20),
    "energy": (state_folder.ENERGY, 1000),
}
SETTLE = 0.5  # seconds to wait for other runs after the first one is found
TURN = 0.05  # seconds to wait for a message, or for the end of a training, before what is due


def say_nothing(text: str) -> None:
    """Discard a line."""


@dataclass(frozen=True)
class JoinResult:
    """The end of a membership.

    updates: number of accepted updates.
    reason: the coordinator's or the agent's reason to end it.
    refused: the coordinator refused this agent.
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
    """Find the run to join: `name`, or the only run at the broker. alive: called while waiting.

    Raises FleetError if there is none within `wait` seconds, or several and no name.
    """
    pattern = topics.run(name) if name else topics.any_run()
    link.subscribe(pattern)
    runs: dict[str, messages.Run] = {}
    start = time.monotonic()
    deadline = start + wait
    announced, mismatch = False, ""
    while (now := time.monotonic()) < deadline:
        alive()
        delivery = link.receive(min(0.5, deadline - now))
        if delivery is not None and delivery.payload and not delivery.topic.startswith("$"):
            try:
                message = envelope.decode(delivery.payload)
            except WireError as error:
                log.warning("ignored a run on %s: %s", delivery.topic, error)
                if isinstance(error, ProtocolMismatch):
                    mismatch = f"{delivery.topic}: {error}"
                continue
            if isinstance(message, messages.Run):
                runs[message.run] = message
                deadline = min(deadline, time.monotonic() + (0.0 if name else SETTLE))
        elif not announced and now - start > 1:
            announced = True
            run = f"run '{name}'" if name else "a run"
            say(
                f"waiting up to {wait:.0f} s for a coordinator to announce {run}; if one is "
                "running, check this device's rights at the broker: edge-agent doctor"
            )
    link.unsubscribe(pattern)
    if len(runs) == 1:
        return next(iter(runs.values()))
    if runs:
        raise FleetError(
            f"several runs at this broker: {', '.join(sorted(runs))}; choose one with --run"
        )
    if mismatch:
        raise FleetError(f"no run at this broker is compatible with this agent: {mismatch}")
    raise FleetError(
        f"no {f'run named {name!r}' if name else 'run'} at this broker after {wait:.0f} s: start a "
        "coordinator (coordinator start --broker ...); if one is running, check this device's "
        "rights at the broker (edge-agent doctor)"
    )


@dataclass(frozen=True)
class JoinRequest:
    """Options of an agent.

    job: work of its training process.
    broker: address of the broker.
    run: name of the run to join; None for the only one at the broker.
    wait: seconds to wait for a run.
    spool: folder of what outlives the agent, with a subfolder per run and name; None for the
        default.
    spool_limit: most bytes of weights and updates in it.
    when: the conditions under which the device trains (see
        `edge_agent.device.training_conditions`).
    fresh: measure the device even if its timings are cached.
    """

    job: Job
    broker: str
    run: str | None
    wait: float
    spool: Path | None = None
    spool_limit: int = LIMIT
    when: str = ""
    fresh: bool = False


def join(request: JoinRequest, stop: threading.Event, say: Say = say_nothing) -> JoinResult:
    """Load the data, measure the device, and take part until the run ends or `stop` is set. If the
    run refuses the trainer that this device chose, use the default one. Raises EspalierError.
    """
    keep_chunks()
    end, trainer = _join_once(request, stop, say)
    if not end.refused or trainer == request.job.trainer:
        return end
    say(f"joining again with the trainer '{DEFAULT}': {end.reason}")
    job = replace(request.job, trainer=DEFAULT)
    return _join_once(replace(request, job=job), stop, say)[0]


def _join_once(request: JoinRequest, stop: threading.Event, say: Say) -> tuple[JoinResult, str]:
    """Take part in a run once. Return the trainer, too. Raises EspalierError."""
    job, session = request.job, secrets.token_hex(8)
    with ExitStack() as stack:
        energy = (
            TrainingEnergy(job.watts, gpu=job.device != "cpu") if "energy" in request.when else None
        )
        uses = open_uses(request.when, energy, stack)
        conditions = BackgroundReading(Conditions(request.when, uses=uses))
        # before the worker, which must not inherit its environment
        manager = stack.enter_context(ServiceManager())
        # before the data, which may take long to load
        base = _prepare_spool(request.spool, stack, say)
        # a link of its own, because the last will of the agent's link names the run
        with closing(open_link(request.broker, f"scout-{job.name}-{session[:4]}")) as scout:
            worker = stack.enter_context(closing(Worker(job)))
            with show_progress("loading the data", of_bytes=True) as show:
                card = worker.load(show)
            say(describe_data(job, card, worker.limits))
            manager.ready("looking for a run")
            write_start(joined=False)
            ping = partial(manager.ping, lambda: "looking for a run")
            run = find_run(scout, request.run, request.wait, say, ping)
        # before the link: of two agents with the same name, the first one stays connected
        spool = stack.enter_context(closing(_open_spool(request, run, base)))
        link = stack.enter_context(closing(_open_link(request, run, session)))
        http = describe_http_access(request.broker)
        if "traffic" in uses:
            links = scout, link
            uses["traffic"].watch(
                lambda: (
                    sum(one.sent_bytes + one.received_bytes for one in links)
                    + http.transferred.total
                )
            )
        equipment = Equipment(
            lambda card: measure_device(worker, card, link, say, fresh=request.fresh),
            worker,
            spool,
            conditions.refresh,
            condition=lambda: watch.condition,
            http=http,
        )
        participant = AgentEventLoop(link, run, job.name, session, equipment)
        watch = Watch(lambda: read_limits(worker))

        def after_turn() -> float:
            manager.ping(lambda: _describe_status(participant))
            remeasure(participant, worker, watch, say)
            if energy is not None:
                energy.update(training=worker.busy)
            return wait_for_training(worker, link)

        write_start(joined=True)
        end = take_part(participant, stop, say, after_turn)
        if end.refused:
            remove_start()
        return end, worker.job.trainer


def open_uses(when: str, energy: TrainingEnergy | None, stack: ExitStack) -> dict[str, MonthlyUse]:
    """Return the counts of this month that conditions need and that this device can count. Raises
    StoreError if the user has no folder for them.
    """
    uses: dict[str, MonthlyUse] = {}
    for kind, (file, worth) in COUNTED.items():
        if kind in when and (energy is None or energy.known or kind != "energy"):
            uses[kind] = MonthlyUse(state_folder.locate_state() / file, worth)
            stack.callback(uses[kind].close)
    if energy is not None and energy.known:
        uses["energy"].watch(energy.count)
    return uses


def _open_link(request: JoinRequest, run: messages.Run, session: str) -> Link:
    """Open the agent's link. Its last will says that the agent is disconnected."""
    name = request.job.name
    will = envelope.encode(messages.Status(name, session, False))
    return open_link(request.broker, f"{run.run}-{name}", (topics.status(run.run, name), will))


def _prepare_spool(root: Path | None, stack: ExitStack, say: Say) -> Path:
    """Return the folder of all spools. If the default folder is unusable, use a temporary one.

    root: the folder that --spool names, or None. Raises StoreError if it is unusable.
    """
    try:
        base = root if root is not None else state_folder.locate_state() / state_folder.SPOOL
        base.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=base).close()
    except (OSError, StoreError) as error:
        if root is not None:
            reason = describe_os_error(error) if isinstance(error, OSError) else error
            raise StoreError(f"--spool {root}: cannot use this folder: {reason}") from error
        say(f"this agent cannot resume after a restart: {error}; set a folder with --spool")
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="espalier-")))
    return base


def _open_spool(request: JoinRequest, run: messages.Run, base: Path) -> Spool:
    """Open this agent's spool of a run. Raises StoreError."""
    name = request.job.name
    spool = Spool(base / run.run / name, lasting=True, limit=request.spool_limit)
    spool.tidy(base.glob(f"*/{name}"))
    return spool


def _describe_status(participant: AgentEventLoop) -> str:
    """Describe the agent in one line for the service manager."""
    now = participant.state
    doing = now.paused or describe_activity(now)
    return f"run {now.card.run}: {doing}, {format_count(now.finished, 'update')}"


def wait_for_training(worker: Worker, link: Link) -> float:
    """Wait for the training process if it works and no message came. Return the seconds that the
    next turn is to wait for a message.
    """
    if not worker.busy:
        return TURN
    if not link.backlog:
        worker.wait(TURN)
    return 0.0


def read_limits(worker: Worker) -> tuple[float, float]:
    """Return the processors and bytes that the training process may use now, or, if there is no
    such process, those that the owner allows.
    """
    limits = worker.job.limits
    try:
        return count_cpus(limits, worker.pid), find_memory_limit(limits, worker.pid)
    except OSError:
        return count_cpus(limits), find_memory_limit(limits)


def remeasure(participant: AgentEventLoop, worker: Worker, watch: Watch, say: Say) -> None:
    """Measure the device again between two tasks if its measurements are outdated, and publish the
    new profile.
    """
    before = participant.state
    if not (reason := watch.look()) or describe_activity(before) != "idle" or before.paused:
        return
    say(f"measuring again: {reason}")
    try:
        measured = worker.measure(before.card, fresh=watch.fresh)
    except EspalierError as error:  # the agent continues with the old profile
        log.error("could not measure again: %s", error)
        worker.poll()  # replaces the training process if measuring killed it
    else:
        old = before.profile
        participant.update_profile(replace(measured, uplink=old.uplink, chunk=old.chunk))
        say(describe_profile(participant.state.profile))
    watch.reset()


def measure_device(
    worker: Worker, run: messages.Run, link: Link, say: Say, *, fresh: bool = False
) -> Profile:
    """Return the whole profile: the worker's measurements of the device, and those of the link."""
    if run.calibration:
        say(f"measuring this device for run '{run.run}'")
    with show_progress("measuring this device"):
        measured = worker.measure(run, fresh=fresh)
        chunk, uplink = link.probe(topics.probe(run.run, measured.agent))
    profile = replace(measured, uplink=uplink, chunk=chunk)
    say(describe_profile(profile))
    return profile


def describe_profile(profile: Profile) -> str:
    """Describe a measured device in one line."""
    steps = ", ".join(f"{t.submodel.name} {t.seconds * 1000:.0f} ms" for t in profile.timings)
    return (
        (f"{profile.board.model}: " if profile.board.model else "")
        + f"{profile.cpus:g} CPUs, {profile.memory // 10**6} MB of free memory, uplink "
        f"{profile.uplink / 1e6:.0f} MB/s, trains with {profile.runtime}"
        + (f", step time {steps}" if steps else "")
    )


def describe_data(job: Job, card: Card, limits: str) -> str:
    """Describe the agent's data and limits in one line."""
    value = "values" if card.outputs > 1 else "value"
    outputs = {"class": "classes", "value": value, "token": "tokens"}[card.target]
    return (
        f"agent {job.name}: {card.name}, {card.examples} examples for training, "
        f"{card.held_out} held out; {card.outputs} {outputs}, "
        f"shape {'x'.join(map(str, card.inputs))}; limits: {limits}"
    )


def take_part(
    participant: AgentEventLoop,
    stop: threading.Event,
    say: Say = say_nothing,
    after_turn: Callable[[], float] = lambda: TURN,
) -> JoinResult:
    """Join, take turns until the run ends or `stop` is set, and leave.

    after_turn: called after each turn; returns the seconds that the next one waits for a message.
    """
    participant.join()
    say(f"joined run '{participant.state.card.run}' as {participant.state.name}")
    doing, paused, online, jumps, timeout = "", "", True, JumpDetector(), TURN
    try:
        while not stop.is_set() and participant.turn(timeout):
            now = participant.state
            if describe_activity(now) != doing:
                doing = describe_activity(now)
                log.info("%s: %s", now.name, doing)
            if jump := jumps.check():
                log.warning("%s", jump)
            if now.online != online:
                online = now.online
                say("reconnected to the broker" if online else LINK_LOST)
            if now.paused != paused:
                paused = now.paused
                say(f"pausing: {paused}" if paused else "resuming")
            timeout = after_turn()
    finally:
        try:
            participant.leave()
        except LinkError as error:
            log.info("could not report that this agent leaves: %s", error)
    end = participant.state
    return JoinResult(end.name, end.card.run, end.finished, end.over or "stopped", end.refused)
