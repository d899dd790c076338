"""Print the status of a run's releases at the end of `coordinator release`: the stable, canary and
previous versions, and the version that each agent serves, with its latency and accuracy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from coordinator.release.history import History, ModelHistory, ReportType, VersionType
from export.broker_publishing import PublishedReleases
from federated.runtime.console import Say
from federated.safe_terminal_table import make_table, render_table
from federated.wire.release_messages import Serving

__all__ = ["describe_history", "report", "say_versions"]

WIDTH = 200  # columns of the table


def report(history: ModelHistory, seen: PublishedReleases, say: Say) -> dict[str, Any]:
    """Print the releases of a run and the agents' reports; return both as plain values."""
    rows = [_row(history, serving) for _, serving in sorted(seen.servings.items())]
    say_versions(history, say)
    if rows:
        say(_table(rows))
    kept = {name: item.version for name, item in history.items.items()}
    versions = {
        name: {"round": v.round, "submodels": list(v.submodels), "untrained": list(v.untrained)}
        for name, v in kept.items()
    }
    return describe_history(history) | {"versions": versions, "reports": rows}


def say_versions(history: History[VersionType, ReportType], say: Say) -> None:
    """Print the stable, the canary and the previous version."""
    for name, what in (
        (history.stable, "stable"),
        (history.canary, "canary"),
        (history.previous, "previous"),
    ):
        if name:
            to = f", for {', '.join(history.agents)}" if what == "canary" else ""
            say(f"{what + ':':<10}{name} (round {history.items[name].version.round}){to}")
    if not history.items:
        say(f"run '{history.run}' has not released anything yet")


def describe_history(history: History[VersionType, ReportType]) -> dict[str, Any]:
    """Return the versions of a history and its last event as plain values."""
    built: dict[str, Any] = msgspec.to_builtins(replace(history, items={}))
    last = msgspec.to_builtins(history.events[-1]) if history.events else None
    return {key: built[key] for key in ("run", "stable", "previous", "canary", "agents")} | {
        "last": last
    }


def _row(history: ModelHistory, serving: Serving) -> dict[str, Any]:
    """Return what one agent serves, and its accuracy before."""
    now = serving.version
    old = history.items[now].before.get(serving.agent) if now in history.items else None
    then = (
        serving.accuracy_before
        if serving.accuracy_before is not None
        else old.accuracy
        if old is not None and old.version != now
        else None
    )
    state = "refused" if serving.refused else "serving" if now else "waiting"
    kept = (
        "agent",
        "version",
        "submodel",
        "variant",
        "provider",
        "p50",
        "p90",
        "examples",
        "accuracy",
        "answered",
        "failed",
        "refused",
        "reason",
    )
    return {**{key: getattr(serving, key) for key in kept}, "accuracy_before": then, "state": state}


def _table(rows: list[dict[str, Any]]) -> str:
    table = make_table(
        *("agent", "version", "submodel", "variant", "provider", "p50 ms", "p90 ms"),
        *("accuracy", "now", "answered", "failed", "state"),
    )
    for row in rows:
        names = ("agent", "version", "submodel", "variant", "provider")
        times = [None if row[key] is None else 1e3 * row[key] for key in ("p50", "p90")]
        table.add_row(
            *(str(row[key]) or "-" for key in names),
            *("-" if value is None else f"{value:.2f}" for value in times),
            *(
                "-" if row[key] is None else f"{row[key]:.3f}"
                for key in ("accuracy_before", "accuracy")
            ),
            *(str(row[key]) for key in ("answered", "failed", "state")),
        )
    refusals = [
        f"{row['agent']} refused {row['refused']}: {row['reason']}"
        for row in rows
        if row["refused"]
    ]
    return "\n".join([render_table(table, WIDTH, styled=False), *refusals])
