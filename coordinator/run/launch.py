"""Start or resume a run at a broker: the code behind `coordinator start`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
from rich.live import Live

from coordinator import audit_log
from coordinator.access.broker_setup import open_broker_access
from coordinator.broker import external_broker_checks
from coordinator.broker.broker_profiles import PROFILES
from coordinator.fleet.message_loop import MessageLoop
from coordinator.http_transfers.configured_transfers import open_transfers
from coordinator.observe.event_readers.terminal_output import (
    LinePrinter,
    Screen,
    render_agents,
    render_scores,
)
from coordinator.observe.events import Event, LoopTurned, Publish, publish_to
from coordinator.observe.fleet_scores import list_untrained, select_overall
from coordinator.phones.phone_server_process import serve_phones
from coordinator.round.round_state import Agent
from coordinator.run.config_sources import ConfigSources
from coordinator.run.rounds import Result
from coordinator.run.run_preparation import STARTED, Prepared, find_name, prepare
from coordinator.run.runner import RunOptions, run
from coordinator.run.standby import check_standby, wait_to_lead
from coordinator.settings.config import Config, read_tables, to_json
from coordinator.settings.service_tables import Log
from coordinator.store.control_requests import Stopped
from coordinator.store.run_folders import DATABASE, find_latest_run, list_runs
from coordinator.store.run_lock import Held
from coordinator.store.run_store import Store
from coordinator.update_workers.worker_pool import WorkerSettings
from federated.errors import ConfigError, StoreError, UsageError
from federated.runtime import logs
from federated.runtime.console import Say
from federated.runtime.service_manager import ServiceManager
from federated.runtime.unit_formatting import format_count, human_bytes
from federated.safe_terminal_table import render_table
from federated.system.memory_allocation import keep_chunks
from federated.system.process_limits import raise_descriptor_limit
from federated.wire import topics
from federated.wire.link import get_scheme
from federated.wire.links.catalogue import open_link
from models.cost import cost

__all__ = [
    "View",
    "check_same",
    "load_named",
    "load_stored",
    "report",
    "show",
    "start_run",
    "suggest_resume",
]

WIDTH = 110  # columns of a table in a log file
FIXED = (
    "name",
    "method",
    "train",
    "model",
    "data",
    "seed",
    "private.clip",
    "private.noise",
    "robust.clip",
    "robust.rule",
    *(f"simulate.{key}" for key in ("agents", "partition", "held", "speeds")),
)  # settings that a resumed run must keep


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
    show(result, live=view.live, say=view.say)
    return report(result, config)


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


def list_changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of the settings that differ, such as `train.lr`, without their values, among
    which may be passwords.
    """
    for key in {*before, *after}:
        had, has = before.get(key), after.get(key)
        if isinstance(had, Mapping) and isinstance(has, Mapping):
            yield from (f"{key}.{one}" for one in list_changed_keys(had, has))
        elif had != has:
            yield key


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
                profile=PROFILES[config.broker.profile] if config.broker.profile else None,
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
    profile = PROFILES[config.broker.profile] if config.broker.profile else None
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


def load_named(sources: ConfigSources, runs: Path, *, resume: bool) -> Config:
    """Return the configuration of a new run, with a name, or of the run to resume. Raises
    StoreError, ConfigError.
    """
    if resume:
        return load_resumed(sources, runs)
    config = sources.load()
    return msgspec.structs.replace(config, name=config.name or find_name(config, runs))


def load_resumed(sources: ConfigSources, runs: Path) -> Config:
    """Return the configuration of a stored run, with the changes of the sources. Raises StoreError,
    ConfigError.
    """
    name = sources.load_tables().name or find_latest_run(runs)
    before = load_stored(runs, name)
    base = to_json(before)
    after = sources.load(base=base)
    if after.broker.url != before.broker.url:  # the stored settings are for the broker before
        kept = {"listen"} if before.broker.tls else set()  # of the enrolment server
        for key in set(STARTED) - kept:
            base["broker"].pop(key)
        after = sources.load(base=base)
    check_same(before, after)
    return after


def load_stored(runs: Path, name: str) -> Config:
    """Return the configuration of a stored run, after repairs that resuming needs. Raises
    StoreError.
    """
    with closing(Store.open(runs, name)) as store:
        return read_tables(store.read_facts().config)


def check_same(before: Config, after: Config) -> None:
    """Raise ConfigError if a resumed run would change one of the `FIXED` settings."""
    if changes := [change for key in FIXED for change in list_changes(key, before, after)]:
        raise ConfigError(
            f"cannot resume run '{before.name}' with other settings: {'; '.join(changes)}; keep "
            "these settings, or start a new run with another name"
        )


def list_changes(key: str, before: Config, after: Config) -> list[str]:
    """Return the changed values of one setting, or of a table, in words."""
    had, has = (msgspec.to_builtins(attrgetter(key)(config)) for config in (before, after))
    if not isinstance(had, dict):
        return [f"{key}: expected {had!r}, found {has!r}"] if had != has else []
    return [
        f"{key}.{one}: expected {spell_setting(had, one)}, found {spell_setting(has, one)}"
        for one in sorted({*had, *has})
        if had.get(one) != has.get(one)
    ]


def spell_setting(table: Mapping[str, Any], key: str) -> str:
    return repr(table[key]) if key in table else "its default"


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


def show(result: Result, *, live: bool, say: Say) -> None:
    """Print the closing tables."""
    rows = [
        (agent, s.unowned.name, s.plain.name, cost(s).parameters, cost(s).macs)
        for agent, s in sorted(result.history.assigned.items())
    ]
    tables = (render_agents(rows, result.scores), render_scores(result.scores))
    width = None if live else WIDTH
    say("\n".join(render_table(table, width, styled=False) for table in tables))
    if names := list_untrained(result.scores):
        say(
            f"not trained: {', '.join(names)}; no device trained "
            f"{'it' if len(names) == 1 else 'them'} as a whole, only parts inside other "
            "submodels"
        )
    say(
        f"{format_count(result.rounds, 'round')}, {result.seconds:.1f} s, "
        f"{human_bytes(result.bytes_up)} up, {human_bytes(result.bytes_down)} down"
    )
    if result.epsilon:
        say(
            f"epsilon {result.epsilon:.4g} at the run's delta, for the device with the largest "
            "privacy loss"
        )


def report(result: Result, config: Config) -> dict[str, Any]:
    """Return the result as plain values.

    accuracy: of the largest evaluated submodel.
    worst_accuracy: of the worst evaluated submodel, trained or not.
    untrained: the evaluated submodels that no update trained.
    """
    scores = select_overall(result.scores)
    return {
        "run": config.name,
        "method": config.method_name,
        "rounds": result.rounds,
        "seconds": round(result.seconds, 3),
        "accuracy": scores[-1].accuracy if scores else None,
        "worst_accuracy": min((s.accuracy for s in scores), default=None),
        "untrained": list_untrained(result.scores),
        "scores": [msgspec.to_builtins(s) for s in result.scores],
        "agents": [
            {
                "id": agent,
                "submodel": s.unowned.name,
                "parameters": cost(s).parameters,
                "macs": cost(s).macs,
            }
            for agent, s in sorted(result.history.assigned.items())
        ],
        "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down,
        "target_reached": result.reached,
        **(
            {"epsilon": result.epsilon, "delta": config.private.delta}
            if config.private.noise
            else {}
        ),
    }
