"""Start or resume a run at a broker: the code behind `coordinator start`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.live import Live

from coordinator import audit_log
from coordinator.access.broker_setup import open_broker_access
from coordinator.broker import external_broker_checks
from coordinator.broker.broker_profiles import find_profile, uses_mqtt
from coordinator.fleet.message_loop import MessageLoop
from coordinator.http_transfers.configured_transfers import open_transfers
from coordinator.observe.event_readers.terminal_output import (
    LinePrinter,
    Screen,
)
from coordinator.observe.events import Event, LoopTurned, Publish, publish_to
from coordinator.phones.phone_server_process import serve_phones
from coordinator.round.round_state import Agent
from coordinator.run.config_sources import ConfigSources
from coordinator.run.result_output import describe_result, print_result
from coordinator.run.rounds import Result
from coordinator.run.run_preparation import Prepared, prepare
from coordinator.run.runner import RunOptions, run
from coordinator.run.standby import check_standby, wait_to_lead
from coordinator.run.stored_configuration import list_changed_keys, load_named
from coordinator.settings.config import Config, read_tables, to_json
from coordinator.settings.service_tables import Log
from coordinator.store.control_requests import Stopped
from coordinator.store.run_folders import DATABASE, list_runs
from coordinator.store.run_lock import Held
from coordinator.store.run_store import Store
from coordinator.update_workers.worker_pool import WorkerSettings
from federated.errors import ConfigError, StoreError, UsageError
from federated.runtime import logs
from federated.runtime.console import Say
from federated.runtime.service_manager import ServiceManager
from federated.runtime.unit_formatting import format_count
from federated.system.memory_allocation import keep_chunks
from federated.system.process_limits import raise_descriptor_limit
from federated.wire import topics
from federated.wire.link import get_scheme
from federated.wire.links.catalogue import open_link

__all__ = ["View", "start_run", "suggest_resume"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class View:
    """Where a run shows its progress.

    say: prints a line.
    live: show a live table instead of lines.
    read: a further reader of the run's events.
    """

    say: Say
    live: bool = False
    read: Publish = lambda event: None


def start_run(
    sources: ConfigSources,
    runs: Path,
    view: View,
    *,
    resume: bool = False,
    or_resume: bool = False,
    standby: float | None = None,
) -> dict[str, Any]:
    """Start or resume a run; return the result as plain values.

    resume: resume the run.
    or_resume: resume the run if it exists, else start it.
    standby: resume the run once it has no coordinator, or its coordinator gave no sign of life for
        this number of seconds. The result is just the name if the run finishes or is stopped
        before. None: do not wait.
    Raises UsageError for `or_resume` or `standby` without a name, and for `standby` without an
    existing broker.
    """
    raise_descriptor_limit()
    keep_chunks()
    with ServiceManager() as manager:  # before the broker, which must not inherit it
        if standby is None:
            return lead_run(sources, runs, view, manager, resume=resume, or_resume=or_resume)
        config = sources.load_tables()
        check_standby(config)
        state = f"standing by until run '{config.name}' has no other coordinator"
        view.say(state)
        manager.ready(state)
        while wait_to_lead(runs / config.name, standby, lambda: manager.ping(lambda: state)):
            view.say(f"run '{config.name}' has no other coordinator; resuming it")
            try:
                return lead_run(sources, runs, view, manager, resume=True)
            except Held:  # another standby was faster
                continue
    view.say(f"run '{config.name}' has finished or was stopped on request")
    return {"run": config.name}


def lead_run(
    sources: ConfigSources,
    runs: Path,
    view: View,
    manager: ServiceManager,
    *,
    resume: bool = False,
    or_resume: bool = False,
) -> dict[str, Any]:
    """Do what `start_run` does, without waiting. Raises Held if another coordinator leads the
    run.
    """
    config = sources.load_tables()
    if or_resume and not config.name:
        raise UsageError("--or-resume needs the name of a run: add --name NAME")
    resume = resume or (or_resume and config.name in list_runs(runs))
    config = load_named(sources, runs, resume=resume)
    if config.log != Log():
        logs.configure(
            form=config.log.format, file=Path(config.log.file) if config.log.file else None
        )
    how = f"resume with: coordinator start --name {config.name} --resume"
    with suggest_resume(runs, (config.name,), how):
        prepared = prepare(config, runs, resume=resume)
        try:
            with prepared.store.leading():
                record_start(prepared, runs, resume=resume)
                result = run_at_broker(prepared, runs / config.name, view, manager)
        except Stopped as why:
            resume = True  # keep the run, which can be resumed
            view.say(f"{why}; {how}")
            return {
                "run": config.name,
                "method": config.method_name,
                "rounds": prepared.store.rounds_done,
                "stopped": str(why),
            }
        finally:
            prepared.close(discard=not resume)
    print_result(result, live=view.live, say=view.say)
    return describe_result(result, config)


@contextmanager
def suggest_resume(runs: Path, names: Collection[str], how: str) -> Iterator[None]:
    """After ctrl-C, add to its message how to resume, if one of these runs is stored. A run without
    a round was deleted by then.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not {*names} & {*list_runs(runs)}:
            raise
        raise KeyboardInterrupt(f"interrupted; {how}") from None


def record_start(prepared: Prepared, runs: Path, *, resume: bool) -> None:
    """Record in the audit log who starts or resumes a run, and which settings change."""
    stored = read_tables(prepared.store.read_facts().config)  # with tuples, as JSON has none
    before, after = to_json(stored), to_json(prepared.config)
    changed = ", ".join(sorted(list_changed_keys(before, after)))
    what, path = "resume" if resume else "start", runs / prepared.config.name / DATABASE
    audit_log.record(path, None, what, f"changed: {changed}" if changed else "")


def run_at_broker(prepared: Prepared, folder: Path, view: View, manager: ServiceManager) -> Result:
    """Execute the run over a broker, and show it."""
    config, fleets = prepared.config, list[MessageLoop]()
    will = topics.run(config.name), b""  # removes the card, so that no agent joins a dead run
    with (
        open_broker_access(config.broker, folder, view.say, config.wire.chunk) as broker_access,
        open_transfers(config, prepared.store.spool, view.say, prepared.store.leads) as urls,
        serve_phones(config, broker_access.address, view.say, urls.origin if urls else ""),
        closing(open_link(broker_access.address, f"coordinator-{config.name}", will)) as link,
        open_view(config, fleets, view) as read,
    ):
        if config.broker.url:
            chunks = urls is None or urls.above > 0
            broker_access.by_name_only = external_broker_checks.adapt(
                link,
                broker_access.address,
                config.name,
                view.say,
                chunks=chunks,
                profile=find_profile(config.broker.profile),
            )
        view.say(
            f"run '{config.name}': {config.method_name} on {config.data.name}, up "
            f"to {format_count(config.rounds, 'round')}, stored in {folder}"
        )
        return run(
            prepared,
            link,
            publish_to(
                read,
                view.read,
                make_manager_reader(manager, fleets),
                make_lock_reader(prepared.store),
            ),
            lambda fleet: bind(fleet, fleets, manager),
            RunOptions(
                broker_access=broker_access,
                urls=urls,
                workers=choose_workers(config, broker_access.address),
            ),
        )


def choose_workers(config: Config, address: str) -> WorkerSettings | None:
    """Return the processes that receive updates at a broker; None if this process does. Raises
    ConfigError for a broker that they cannot reach.
    """
    if not config.wire.workers:
        return None
    if get_scheme(address) == "memory":
        raise ConfigError("wire.workers: other processes cannot reach a broker in memory")
    if not uses_mqtt(config):
        log.warning(
            "wire.workers: all updates use HTTP (http.above = 0), which this process receives, so "
            "workers have nothing to do: leave out --workers"
        )
    profile = find_profile(config.broker.profile)
    rate = None if profile is None else profile.messages
    return WorkerSettings(config.wire.workers, address, config.name, rate)


def bind(fleet: MessageLoop, fleets: list[MessageLoop], manager: ServiceManager) -> None:
    """Hand the fleet to the readers, and tell the service manager that the coordinator is ready."""
    fleets.append(fleet)
    manager.ready("waiting for agents")


def make_manager_reader(manager: ServiceManager, fleets: Sequence[MessageLoop]) -> Publish:
    """Return a reader that sends the service manager signs of life and the state of the round."""

    def describe_round() -> str:
        fleet = fleets[0]
        ready = f"{len(fleet.list_ready())} of {len(fleet.agents)} agents ready"
        if not fleet.tasks:
            return f"run {fleet.run.run}: {ready}"
        number, settled = fleet.tasks[0].task.round, sum(not one.open for one in fleet.tasks)
        return (
            f"run {fleet.run.run}: round {number}: {settled} of {len(fleet.tasks)} settled; {ready}"
        )

    def read(event: Event) -> None:
        if isinstance(event, LoopTurned) and fleets:
            manager.ping(describe_round)

    return read


def make_lock_reader(store: Store) -> Publish:
    """Return a reader that raises Superseded soon after a standby took over the run."""

    def read(event: Event) -> None:
        if isinstance(event, LoopTurned):
            with suppress(StoreError):  # those who must write report a failing disk
                store.check_lock()

    return read


@contextmanager
def open_view(config: Config, fleets: Sequence[MessageLoop], view: View) -> Iterator[Publish]:
    """Open the reader that shows the run: a live table, or lines. fleets: holds the run's fleet
    once it exists.
    """
    if not view.live:
        yield LinePrinter(view.say).read
        return

    def agents() -> Sequence[Agent]:
        return sorted(fleets[0].agents.values(), key=lambda a: a.name) if fleets else ()

    screen = Screen(agents, config.name)
    with Live(get_renderable=screen.draw, refresh_per_second=8, transient=True):
        yield screen.read
