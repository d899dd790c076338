"""Prepare the output of `coordinator status`, from the folder of a run that is running or not."""

from __future__ import annotations

import math
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from coordinator.observe.fleet_scores import (
    VIEWS,
    format_metric,
    name_headline_metrics,
    select_overall,
)
from coordinator.observe.now_json import STATES, TASKS, Now, read_now
from coordinator.observe.round_records import Score
from coordinator.round.task_state import RETURN_TIME
from coordinator.settings.config import Config, read_tables
from coordinator.store import control_requests, run_lock
from coordinator.store.run_database_reader import RunRecords, open_records
from coordinator.store.run_folders import find_current_run
from coordinator.store.training_counts import count_run
from coordinator.views import run_log
from federated.runtime.unit_formatting import format_count, human_bytes, human_seconds
from federated.safe_terminal_table import make_table, render_table
from federated.safe_text import make_safe

__all__ = [
    "describe_config",
    "describe_lost_tasks",
    "describe_status",
    "find_last_scores",
    "find_state",
    "read_config",
    "render_status",
]

RECENT = 5  # rounds from which the time left is estimated, and errors that are shown
SILENT = 10.0  # seconds without an update from the coordinator after which status says so

MAX_LOST = 5  # absent agents that are named
MAX_MEMBERS = 40  # agents in the table; the others are counted


def describe_status(name: str | None, runs: Path) -> dict[str, Any]:
    """Return a run as plain values. Without a name it is the running one, else the latest. Raises
    StoreError.

    state: running, over, stopped, failed or dead (its coordinator crashed or was killed); all but
    `over` can resume.
    """
    with closing(open_records(runs, name or find_current_run(runs))) as records:
        folder, done, history = records.folder, records.rounds_done, records.read_history()
        held, now, requests = (
            run_lock.is_held(folder),
            read_now(folder),
            control_requests.read_requests(folder),
        )
        updated = datetime.fromisoformat(now.updated) if held and now else None
        config, (scored, scores) = read_config(records), find_last_scores(records)
        return {
            "run": folder.name,
            **describe_config(config),
            "state": find_state(held, done, config.rounds, now),
            "rounds_done": done,
            "rounds": config.rounds,
            "eta": estimate_time_left(history, config.rounds - done) if held else None,
            "scores": {"round": scored, "values": msgspec.to_builtins(select_overall(scores))},
            "bytes_up": sum(up for *_, up, _ in history),
            "bytes_down": sum(down for *_, down in history),
            "requests": msgspec.to_builtins(requests) if held else None,
            "silent": max(0.0, (datetime.now(UTC) - updated).total_seconds()) if updated else None,
            "now": msgspec.to_builtins(now) if now else None,
            "errors": run_log.read_recent_errors(folder, RECENT),
        }


def read_config(records: RunRecords) -> Config:
    """Return the stored configuration, without a check of the method's settings."""
    return read_tables(records.read_facts().config)


def describe_config(config: Config) -> dict[str, Any]:
    return {"method": config.method_name, "model": config.model.name, "data": config.data.name}


def find_last_scores(records: RunRecords) -> tuple[int, list[Score]]:
    """Return the number and scores of the last round that has any; 0 without one. The scores
    include how often their submodels were trained until then.
    """
    for number in range(records.rounds_done, 0, -1):
        if found := records.read_scores(number):
            return number, list(count_run(records, number).mark(found))
    return 0, []


def find_state(held: bool, done: int, rounds: int, now: Now | None) -> str:
    if held:
        return "running"
    if done >= rounds or (now is not None and now.phase == "over"):
        return "over"
    if now is None:
        return "stopped"
    return now.phase if now.phase in ("stopped", "failed") else "dead"


def estimate_time_left(history: list[tuple[int, float, int, int]], left: int) -> float | None:
    """Return the estimated seconds of the rounds left, from the last ones; None without any."""
    recent = [seconds for _, seconds, *_ in history[-RECENT:]]
    return left * sum(recent) / len(recent) if recent and left > 0 else None


# ---- one run as text -----------------------------------------------------------------------------


def render_status(made: dict[str, Any]) -> str:
    """Return the status as text: the run, its progress, agents, traffic, scores and errors."""
    lines = [
        f"run '{made['run']}': {made['method']} of {made['model']} on {made['data']}",
        *describe_progress(made),
        describe_traffic(made),
        *describe_scores(made),
    ]
    if made["errors"]:
        lines += [
            "recent warnings and errors",
            *(f"  {run_log.format_event(event)}" for event in made["errors"]),
        ]
    if made["state"] in ("stopped", "failed", "dead"):
        lines.append(f"resume with: coordinator start --name {made['run']} --resume")
    return "\n".join(lines)


def describe_progress(made: dict[str, Any]) -> list[str]:
    """Return lines on the run's phase, requests, tasks and agents."""
    now, done = made["now"], f"{made['rounds_done']} of {made['rounds']} rounds done"
    if made["state"] != "running":
        return [f"{describe_end(made)}; {done}"]
    if now is None:
        return [f"running (starting or computing); {done}"]
    left = f", about {human_seconds(made['eta'])} left" if made["eta"] else ""
    silent = f"; no update from the coordinator for {human_seconds(made['silent'])}"
    lines = [f"{describe_phase(now)}; {done}{left}{silent if made['silent'] > SILENT else ''}"]
    lines += [
        make_safe(f"lost the connection to the {place}: {lost}; waiting for it")
        for place in ("broker", "store")
        if (lost := now[f"{place}_lost"])
    ]
    if made["requests"]["paused"] and now["phase"] != "paused":
        waiting = now["phase"] == "waiting"
        lines.append(
            "starts no round until `coordinator pause --off`"
            if waiting
            else "pauses after the current round"
        )
    if pins := made["requests"]["pins"]:
        pinned = ", ".join(f"{agent} to {name}" for agent, name in sorted(pins.items()))
        lines.append(make_safe(f"pinned: {pinned}"))
    if stop := made["requests"]["stop"]:
        lines.append("stops after the current round" if stop == "stop" else "stops at once")
    if now["tasks"]:
        lines.append("tasks: " + format_counts(now["tasks"], TASKS))
    lines += describe_lost_tasks(now)
    lines.append("agents: " + (format_counts(now["agents"], STATES) or "none yet"))
    if now["members"]:
        lines.append(render_table(render_members(now["members"])))
    return lines


def describe_lost_tasks(now: dict[str, Any]) -> list[str]:
    """Return a line on the absent agents that the phase waits for, and until when, in local time;
    none without them.
    """
    waits = dict[str, float]()
    for course in now["courses"]:
        stage, began = course["stages"][-1]
        if stage == "lost" and course["due"] is not None and not course["late"]:
            until = min(began + RETURN_TIME, course["due"], now["limit"] or math.inf)
            if until > now["elapsed"]:
                waits[course["agent"]] = until
    if not waits:
        return []
    names = [*waits][:MAX_LOST]
    if len(waits) > MAX_LOST:
        names.append(f"{len(waits) - MAX_LOST} more")
    left = timedelta(seconds=max(waits.values()) - now["elapsed"])
    until_time = (datetime.fromisoformat(now["updated"]) + left).astimezone()
    return [
        make_safe(
            f"waits until {until_time:%H:%M:%S} for the return of {', '.join(names)}, then only "
            "for the other agents"
        )
    ]


def describe_end(made: dict[str, Any]) -> str:
    """Return why a run is not running."""
    now = made["now"]
    if made["state"] == "failed":
        return make_safe(f"failed: {now['reason']}")
    if made["state"] != "dead":
        return str(made["state"])
    text = "the coordinator crashed or was killed"
    if now["round"] > made["rounds_done"]:
        text += f" in round {now['round']} ({now['phase']})"
    return text


def describe_phase(now: dict[str, Any]) -> str:
    match now["phase"]:
        case "waiting":
            return f"waiting for {format_count(now['wanted'], 'agent')}"
        case "paused":
            resume = f"coordinator pause {now['run']} --off"
            return f"paused after round {now['round']} (resume with {resume})"
        case "between":
            return f"between rounds, after round {now['round']}" if now["round"] else "starting"
        case word:
            return f"in round {now['round']} of {now['rounds']}: {word}"


def format_counts(counts: dict[str, int], order: tuple[str, ...]) -> str:
    return ", ".join(f"{counts[word]} {word}" for word in order if counts.get(word))


def render_members(members: list[dict[str, Any]]) -> Table:
    table = make_table("agent", "submodel", "state", "task", "loss")
    for member in members[:MAX_MEMBERS]:
        state, reason = member["state"], member["reason"]
        table.add_row(
            member["agent"],
            member["submodel"],
            reason if reason and state not in ("gone", "measuring") else state,
            member["task"],
            "" if member["loss"] is None else f"{member['loss']:.3f}",
        )
    if len(members) > MAX_MEMBERS:
        table.add_row(f"and {len(members) - MAX_MEMBERS} more")
    return table


def describe_traffic(made: dict[str, Any]) -> str:
    now, up, down = made["now"], human_bytes(made["bytes_up"]), human_bytes(made["bytes_down"])
    text = f"{up} up, {down} down in finished rounds"
    if now is not None and now["epsilon"] is not None:
        text += f"; epsilon {now['epsilon']:.4g}"
    if made["state"] == "running" and now is not None:
        text += (
            f"; {now['receiving']} updates being received, {now['waiting']} waiting, "
            f"{now['queued']} messages queued; spool {now['spool_files']} files, "
            f"{human_bytes(now['spool_bytes'])}"
        )
    return text


def describe_scores(made: dict[str, Any]) -> list[str]:
    scores = [msgspec.convert(score, Score) for score in made["scores"]["values"]]
    head = f"after round {made['scores']['round']}"
    return [
        f"{head}: {title} {VIEWS[scores[0].view]}: "
        + ", ".join(f"{score.label} {format_metric(score.metrics, key)}" for score in scores)
        for key, title in name_headline_metrics(scores).items()
    ]
