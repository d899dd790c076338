"""What `coordinator devices` prints: every agent of a run, what it has and does, and why; from the
run's folder, while it goes on or afterwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from coordinator.assign.decision_record import Decision
from coordinator.assign.standing import Standing
from coordinator.observe.records import Entry
from coordinator.store.run_folders import describe_missing, list_runs
from coordinator.store.run_records import open_records
from coordinator.store.training_counts import count_run
from federated.errors import StoreError
from federated.runtime.units import human_seconds, megabytes
from federated.task import Profile
from federated.wire.release_files import UNTRAINED

__all__ = ["overview", "text"]

WIDTH = 150
COLUMNS = (
    "agent",
    "device",
    "cpus",
    "memory",
    "uplink",
    "state",
    "submodel",
    "step: predicted",
    "measured",
    "round: predicted",
    "measured",
    "corrected",
)


def overview(name: str | None, runs: Path) -> dict[str, Any]:
    """A run's agents as plain values; without a name the latest run's. Raises StoreError."""
    if name is None and not list_runs(runs):
        raise StoreError(describe_missing(runs))
    records = open_records(runs, name or list_runs(runs)[-1])
    try:
        agents, lately = records.agents, records.last_entries()
        profiles, standings, decisions = (
            agents.read_profiles(),
            agents.read_standings(),
            agents.read_last_decisions(),
        )
        done = records.rounds_done
        rows = [
            row(
                agent,
                done,
                decisions.get(agent),
                profiles.get(agent),
                standings.get(agent, Standing()),
                lately.get(agent),
            )
            for agent in sorted({*profiles, *decisions})
        ]
        number, missing = (
            max((r["round"] for r in rows), default=done),
            count_run(records).untrained if done else [],
        )
        return {
            "run": records.folder.name,
            "rounds_done": done,
            "round": number,
            "agents": rows,
            "untrained": missing,
        }
    finally:
        records.close()


def row(
    agent: str,
    done: int,
    decided: tuple[int, Decision] | None,
    profile: Profile | None,
    standing: Standing,
    last: tuple[int, Entry] | None,
) -> dict[str, Any]:
    """One agent. predicted: of the present submodel, corrected; measured: the last time that it
    trained.
    """
    number, decision = decided or (0, Decision(agent, reason="no round has begun since it joined"))
    entry = last[1] if last else None
    return {
        "agent": agent,
        "round": number,
        "state": state(number, done, decision, last),
        "submodel": decision.submodel,
        "asked": decision.asked,
        "reason": decision.reason,
        "predicted": {
            "step": decision.step,
            "seconds": decision.seconds,
            "memory": decision.memory,
        },
        "measured": {"round": last[0], **measured(entry)} if last and entry else None,
        "standing": msgspec.to_builtins(standing),
        "profile": None if profile is None else {"labels": list(profile.labels), **has(profile)},
    }


def measured(entry: Entry) -> dict[str, Any]:
    taken = {"step": entry.step, "seconds": entry.seconds, "memory": entry.peak}
    return {
        "submodel": entry.submodel,
        "outcome": entry.outcome,
        **{name: value or None for name, value in taken.items()},
    }


def has(profile: Profile) -> dict[str, Any]:
    """What a device is, as plain values: no data, no survey."""
    kept = ("host", "system", "cpus", "memory", "uplink", "runtime")
    plain: dict[str, Any] = {
        **{name: getattr(profile, name) for name in kept},
        "examples": profile.data.examples,
    }
    return {**plain, "board": msgspec.to_builtins(profile.board)}


def state(number: int, done: int, decision: Decision, last: tuple[int, Entry] | None) -> str:
    """What it does or did last, in few words."""
    if decision.asked and number > done:
        return f"asked in round {number}"
    if last is None:
        return "not asked yet"
    return f"{last[1].outcome.partition(':')[0]} in round {last[0]}"


# ---- as text -------------------------------------------------------------------------------------


def text(made: dict[str, Any]) -> str:
    """The same for a person: a table, and below it why."""
    head = f"run '{made['run']}', {made['rounds_done']} rounds done" + (
        f", in round {made['round']}" if made["round"] > made["rounds_done"] else ""
    )
    if not made["agents"]:
        return f"{head}; no agent has been asked yet"
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in COLUMNS:
        table.add_column(title, no_wrap=title == "agent")
    for one in made["agents"]:
        table.add_row(one["agent"], *cells(one))
    console = Console(width=WIDTH)
    with console.capture() as capture:
        console.print(table)
    marks = [f"{UNTRAINED} so far: {', '.join(made['untrained'])}"] if made["untrained"] else []
    return "\n".join(
        [
            head,
            capture.get().rstrip(),
            "",
            *(f"{one['agent']}: {one['reason']}" for one in made["agents"]),
            *marks,
        ]
    )


def cells(one: dict[str, Any]) -> list[str]:
    profile, expected, took, standing = (
        one["profile"],
        one["predicted"],
        one["measured"] or {},
        one["standing"],
    )
    device = ["-"] * 4
    if profile is not None:
        board = profile["board"]
        kind = board["model"] or (
            board["kind"] if board["kind"] != "generic" else profile["system"]
        )
        device = [
            kind,
            f"{profile['cpus']:g}",
            megabytes(profile["memory"]),
            f"{profile['uplink'] / 1e6:.3g} MB/s" if profile["uplink"] else "-",
        ]
    times = [expected["step"], took.get("step"), expected["seconds"], took.get("seconds")]
    shown = [human_seconds(value) if value else "-" for value in times]
    if took and took["submodel"] != one["submodel"]:  # of what it had before: not to be compared
        shown[1], shown[3] = (
            f"{cell} ({took['submodel']})" if cell != "-" else cell for cell in (shown[1], shown[3])
        )
    corrected = f"x{standing['step']:.2f}" if standing["trained"] or standing["step"] != 1 else "-"
    return [*device, one["state"], one["submodel"] or "-", *shown, corrected]
