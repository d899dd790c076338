"""Prepare the output of `coordinator devices`: every agent of a run, its device, and its submodel
with the reason.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from coordinator.access.configured_authority import read_excluded
from coordinator.assign.agent_track_record import Standing
from coordinator.assign.decision_record import Decision
from coordinator.observe.round_records import Entry
from coordinator.store.run_database_reader import open_records
from coordinator.store.run_folders import find_latest_run
from coordinator.store.training_counts import count_run
from federated.runtime.unit_formatting import format_count, human_seconds, megabytes
from federated.safe_terminal_table import make_table, render_table
from federated.safe_text import make_safe
from federated.task import Profile
from federated.wire.release_messages import UNTRAINED

__all__ = ["describe_agents", "render_agents"]

NAMED = 20  # devices that a line names
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


def describe_agents(name: str | None, runs: Path) -> dict[str, Any]:
    """Return a run's agents as plain values; without a name, of the latest run. Raises
    StoreError.
    """
    with closing(open_records(runs, name or find_latest_run(runs))) as records:
        agents, last, done = records.agents, records.read_last_entries(), records.rounds_done
        profiles, standings = agents.read_profiles(), agents.read_standings()
        decisions = agents.read_last_decisions()
        rows = [
            describe_agent(
                agent,
                done,
                decisions.get(agent),
                profiles.get(agent),
                standings.get(agent, Standing()),
                last.get(agent),
            )
            for agent in sorted({*profiles, *decisions})
        ]
        return {
            "run": records.folder.name,
            "rounds_done": done,
            "round": max((row["round"] for row in rows), default=done),
            "agents": rows,
            "excluded": read_excluded(records.read_facts().config, records.folder.name),
            "untrained": count_run(records).untrained if done else [],
        }


def describe_agent(
    agent: str,
    done: int,
    decided: tuple[int, Decision] | None,
    profile: Profile | None,
    standing: Standing,
    last: tuple[int, Entry] | None,
) -> dict[str, Any]:
    """Return one agent as plain values.

    In the result, `predicted` has the costs of its present submodel, corrected with earlier rounds,
    and `measured` the costs of its last training.
    """
    number, decision = decided or (0, Decision(agent, reason="no round has begun since it joined"))
    measured = None
    if last:
        entry = last[1]
        measured = {
            "round": last[0],
            "submodel": entry.submodel,
            "outcome": entry.outcome,
            "step": entry.step or None,
            "seconds": entry.seconds or None,
            "memory": entry.peak or None,
        }
    return {
        "agent": agent,
        "round": number,
        "state": describe_state(number, done, decision, last),
        "submodel": decision.submodel,
        "asked": decision.asked,
        "reason": decision.reason,
        "predicted": {
            "step": decision.step,
            "seconds": decision.seconds,
            "memory": decision.memory,
        },
        "measured": measured,
        "standing": msgspec.to_builtins(standing),
        "profile": None
        if profile is None
        else {"labels": list(profile.labels), **describe_device(profile)},
    }


def describe_device(profile: Profile) -> dict[str, Any]:
    """Return a device as plain values, without its data card and survey."""
    fields = ("host", "system", "cpus", "memory", "uplink", "runtime", "software", "protocol")
    return {
        **{name: getattr(profile, name) for name in fields},
        "examples": profile.data.examples,
        "board": msgspec.to_builtins(profile.board),
    }


def describe_state(
    number: int, done: int, decision: Decision, last: tuple[int, Entry] | None
) -> str:
    """Describe the state of an agent's last task in a few words."""
    if decision.asked and number > done:
        return f"asked in round {number}"
    if last is None:
        return "not asked yet"
    return f"{last[1].outcome.partition(':')[0]} in round {last[0]}"


# ---- as text -------------------------------------------------------------------------------------


def render_agents(made: dict[str, Any]) -> str:
    """Return the agents as text: a table, then the reason for each submodel."""
    head = f"run '{made['run']}', {format_count(made['rounds_done'], 'round')} done"
    if made["round"] > made["rounds_done"]:
        head += f", in round {made['round']}"
    if not made["agents"]:
        return "\n".join([f"{head}; no agent has been asked yet", *render_excluded(made)])
    table = make_table(*COLUMNS)
    for agent in made["agents"]:
        table.add_row(agent["agent"], *render_cells(agent))
    lines = [head, render_table(table), ""]
    lines += [make_safe(f"{agent['agent']}: {agent['reason']}") for agent in made["agents"]]
    if made["untrained"]:
        lines.append(f"{UNTRAINED} so far: {', '.join(made['untrained'])}")
    if versions := count_versions(made["agents"]):
        lines.append(make_safe(f"software: {versions}"))
    return "\n".join([*lines, *render_excluded(made)])


def render_excluded(made: dict[str, Any]) -> list[str]:
    """Return a line about the devices that may not take part in the run, if there are any."""
    if not (names := made["excluded"]):
        return []
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return [
        f"no right to this run: {', '.join(names[:NAMED])}{more}; give it with: coordinator grant "
        f"NAME --run {made['run']}"
    ]


def count_versions(agents: list[dict[str, Any]]) -> str:
    """Return how many agents have which version of their program; empty if none states it."""
    profiles = [agent["profile"] for agent in agents if agent["profile"] is not None]
    found = Counter(profile["software"] or "unknown" for profile in profiles)
    shown = ", ".join(f"{name} ({format_count(n, 'agent')})" for name, n in sorted(found.items()))
    return "" if found.keys() <= {"unknown"} else shown


def render_cells(agent: dict[str, Any]) -> list[str]:
    """Return the agent's row of the table, without its name."""
    expected, standing = agent["predicted"], agent["standing"]
    took, profile = agent["measured"] or {}, agent["profile"]
    device = ["-"] * 4
    if profile is not None:
        board = profile["board"]
        kind = profile["system"] if board["kind"] == "generic" else board["kind"]
        device = [
            board["model"] or kind,
            f"{profile['cpus']:g}",
            megabytes(profile["memory"]),
            f"{profile['uplink'] / 1e6:.3g} MB/s" if profile["uplink"] else "-",
        ]
    times = [expected["step"], took.get("step"), expected["seconds"], took.get("seconds")]
    shown = [human_seconds(value) if value else "-" for value in times]
    if took and took["submodel"] != agent["submodel"]:  # not comparable with the prediction
        shown[1::2] = (
            f"{cell} ({took['submodel']})" if cell != "-" else cell for cell in shown[1::2]
        )
    corrected = f"x{standing['step']:.2f}" if standing["trained"] or standing["step"] != 1 else "-"
    return [*device, agent["state"], agent["submodel"] or "-", *shown, corrected]
