"""The report that `coordinator release` prints at its end: the versions, and a table of what each
agent serves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from coordinator.release.history import History
from export.publish import PublishedReleases
from federated.runtime.console import Say
from federated.wire.release_files import Serving

__all__ = ["report"]


def report(history: History, seen: PublishedReleases, say: Say) -> dict[str, Any]:
    """Print the releases of a run and the agents' reports; return both as plain values."""
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
    rows = [_row(history, serving) for _, serving in sorted(seen.servings.items())]
    if rows:
        say(_table(rows))
    built: dict[str, Any] = msgspec.to_builtins(replace(history, items={}))
    last = msgspec.to_builtins(history.events[-1]) if history.events else None
    kept = {name: item.version for name, item in history.items.items()}
    versions = {
        name: {"round": v.round, "submodels": list(v.submodels), "untrained": list(v.untrained)}
        for name, v in kept.items()
    }
    return {
        **{key: built[key] for key in ("run", "stable", "previous", "canary", "agents")},
        "versions": versions,
        "last": last,
        "reports": rows,
    }


def _row(history: History, serving: Serving) -> dict[str, Any]:
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
    def format_row(row: dict[str, Any]) -> tuple[str, ...]:
        p50, p90 = (
            f"{row[key] * 1e3:.2f}" if row[key] is not None else "-" for key in ("p50", "p90")
        )
        before, now = (
            f"{row[key]:.3f}" if row[key] is not None else "-"
            for key in ("accuracy_before", "accuracy")
        )
        plain = tuple(
            str(row[key]) or "-" for key in ("agent", "version", "submodel", "variant", "provider")
        )
        return (
            *plain,
            p50,
            p90,
            before,
            now,
            str(row["answered"]),
            str(row["failed"]),
            row["state"],
        )

    head = (
        "agent",
        "version",
        "submodel",
        "variant",
        "provider",
        "p50 ms",
        "p90 ms",
        "accuracy",
        "now",
        "answered",
        "failed",
        "state",
    )
    lines = [head, *map(format_row, rows)]
    wide = [max(len(line[i]) for line in lines) for i in range(len(head))]
    table = [
        "  ".join(f"{word:<{width}}" for word, width in zip(line, wide, strict=True)).rstrip()
        for line in lines
    ]
    refusals = [
        f"{row['agent']} refused {row['refused']}: {row['reason']}"
        for row in rows
        if row["refused"]
    ]
    return "\n".join([*table, *refusals])
