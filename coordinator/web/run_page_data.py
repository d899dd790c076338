"""Collect what the web page shows of one run, as plain values for JSON."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from coordinator.observe.round_records import Entry
from coordinator.release.archive import Archive
from coordinator.release.history import History, list_reports
from coordinator.release.release_status import report
from coordinator.settings.config import Config, describe_key, find_table, to_json
from coordinator.store.run_database_reader import RunRecords, open_records
from coordinator.store.training_counts import count_run
from coordinator.views import agent_table, run_log, run_status
from coordinator.views.fault_counts import describe_faults
from coordinator.views.run_plots import list_scores
from export.broker_publishing import PublishedReleases
from federated.defaults import METHOD

__all__ = ["PARTS", "describe_part"]

MAX_TASKS = 5000  # tasks that the page shows, of the latest rounds
MAX_OUTCOMES = 200  # outcomes that the page counts, the most frequent ones
MAX_EVENTS = 400  # events of the log that the page shows, the latest ones
MAX_METHODS = 32  # methods whose settings are remembered
METHOD_TIMEOUT = 60.0  # seconds to read the settings of a method


def describe_part(runs: Path, run: str, part: str) -> Any:
    """Return one part of a run, a key of PARTS. Raises StoreError, KeyError."""
    return PARTS[part](runs, run)


def describe_rounds(runs: Path, run: str) -> dict[str, Any]:
    """Return every finished round, the scores after it, and the outcomes of all their tasks."""
    with closing(open_records(runs, run)) as records:
        names = ("round", "seconds", "bytes_up", "bytes_down")
        return {
            "rounds": [dict(zip(names, row, strict=True)) for row in records.read_history()],
            "scores": list_scores(records),
            "outcomes": records.count_outcomes()[:MAX_OUTCOMES],
        }


def describe_tasks(runs: Path, run: str) -> list[dict[str, Any]]:
    """Return the tasks of as many of the latest rounds as MAX_TASKS allows, at least of one."""
    found = list[dict[str, Any]]()
    with closing(open_records(runs, run)) as records:
        for number in range(records.rounds_done, 0, -1):
            tasks = [describe_task(number, entry) for entry in records.read_entries(number)]
            if found and len(found) + len(tasks) > MAX_TASKS:
                break
            found = tasks + found
    return found


def describe_task(number: int, entry: Entry) -> dict[str, Any]:
    fields = ("agent", "submodel", "outcome", "task", "samples", "seconds", "step", "peak", "loss")
    return {"round": number, **{name: getattr(entry, name) for name in (*fields, "position")}}


def describe_network(runs: Path, run: str) -> dict[str, Any]:
    """Return the run's submodels, smallest first, how often each was trained, and by whom."""
    with closing(open_records(runs, run)) as records:
        facts, trained = records.read_facts(), count_run(records).trained
        return {
            "name": f"{facts.network.family} {facts.network.preset}" if facts.network else "",
            "submodels": [
                {
                    "name": submodel.name,
                    "width": submodel.width,
                    "depths": [sum(section) for section in submodel.mask],
                    "updates": trained[submodel.name].updates if submodel.name in trained else None,
                }
                for submodel in facts.menu
            ],
            "trained": list(list_trainers(records)),
        }


def list_trainers(records: RunRecords) -> Iterator[dict[str, Any]]:
    """Yield how many updates of each agent and submodel were folded, until which round, and which
    submodels these updates trained: all that are a part of the submodel, for most methods.
    """
    reach = records.read_facts().reach
    for agent, submodel, updates, last in records.count_folded():
        yield {
            "agent": agent,
            "submodel": submodel,
            "updates": updates,
            "last": last,
            "regions": reach.get(submodel, (submodel,)),
        }


def describe_releases(runs: Path, run: str) -> dict[str, Any]:
    """Return the run's releases, the agents' reports as last collected, and what happened, in
    order.
    """
    archived = (runs / run / "releases").is_dir()
    history = Archive(runs, run).read() if archived else History(run)
    reports = PublishedReleases(servings=list_reports(history))
    made = report(history, reports, say=lambda text: None)
    return {**made, "events": msgspec.to_builtins(history.events)}


def describe_settings(runs: Path, run: str) -> list[dict[str, Any]]:
    """Return each setting of the configuration and of the method, with its default and its
    description.
    """
    with closing(open_records(runs, run)) as records:
        config = run_status.read_config(records)
    return [*list_settings(to_json(config)), *list_method_settings(config)]


def list_settings(tree: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for table, values in tree.items():
        if table in ("method", "train"):
            continue
        keys = [f"{table}.{key}" for key in values] if isinstance(values, dict) else [table]
        for key in keys:
            description, default = describe_key(key)
            value = values[key.partition(".")[2]] if isinstance(values, dict) else values
            default = list(default) if isinstance(default, tuple) else default
            yield {"key": key, "value": value, "default": default, "description": description}


def list_method_settings(config: Config) -> Iterator[dict[str, Any]]:
    given = {
        key: value for key, value in {**config.method, **config.train}.items() if key != "name"
    }
    try:
        known = read_method_settings(config.method_name)
    except (OSError, subprocess.TimeoutExpired):  # of a busy machine: the next request tries again
        known = {}
    yield {
        "key": "method.name",
        "value": config.method_name,
        "default": METHOD,
        "description": "Name of the method.",
    }
    for key in dict.fromkeys([*known, *given]):
        default = known.get(key, {}).get("default")
        yield {
            "key": f"{find_table(key)}.{key}",
            "value": given.get(key, default),
            "default": default,
            "description": known.get(key, {}).get("help", ""),
        }


@lru_cache(maxsize=MAX_METHODS)
def read_method_settings(name: str) -> dict[str, dict[str, Any]]:
    """Return what is known of a method's settings; empty if the method is not installed here. In
    a process of its own, since a method loads PyTorch, and code of its author. Raises OSError,
    TimeoutExpired.
    """
    command = [sys.executable, "-m", "coordinator.cli", "methods", "--format", "json", "--", name]
    done = subprocess.run(  # noqa: S603  # without a shell
        command, capture_output=True, timeout=METHOD_TIMEOUT
    )
    try:
        return dict(msgspec.json.decode(done.stdout)["settings"])
    except msgspec.DecodeError:
        return {}


def read_log(runs: Path, run: str) -> list[dict[str, Any]]:
    """Return the latest events, the newest first; none if the run has no log."""
    fields = ("time", "level", "message", "agent", "round", "event")
    found = run_log.read_recent_events(runs / run)[-MAX_EVENTS:]
    return [{name: event.get(name) for name in fields} for event in reversed(found)]


PARTS: Mapping[str, Callable[[Path, str], Any]] = {
    "agents": lambda runs, run: agent_table.describe_agents(run, runs),
    "faults": lambda runs, run: describe_faults(runs / run),
    "log": read_log,
    "network": describe_network,
    "releases": describe_releases,
    "rounds": describe_rounds,
    "settings": describe_settings,
    "status": lambda runs, run: run_status.describe_status(run, runs),
    "tasks": describe_tasks,
}
"""Functions that return a part of a run, by name: runs' folder, run's name -> plain values."""
