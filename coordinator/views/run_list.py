"""Prepare the output of `coordinator runs`: a table of every run in a folder."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coordinator.observe.fleet_scores import list_untrained, select_overall
from coordinator.observe.now_json import read_now
from coordinator.store import run_lock
from coordinator.store.run_database_reader import RunRecords, open_records
from coordinator.store.run_folders import DATABASE, describe_missing, list_runs
from coordinator.views.run_status import (
    describe_config,
    find_last_scores,
    find_state,
    read_config,
)
from federated.errors import EspalierError
from federated.safe_terminal_table import make_table, render_table
from federated.wire.release_messages import UNTRAINED

__all__ = ["describe_runs", "render_runs"]

COLUMNS = (
    *("run", "state", "method", "model", "data", "rounds"),
    *("accuracy", "worst", "last written"),
)


def describe_runs(runs: Path) -> list[dict[str, Any]]:
    """Return every run in a folder as plain values, the latest last. A damaged run has an error."""
    return [describe_run(runs, name) for name in list_runs(runs)]


def describe_run(runs: Path, name: str) -> dict[str, Any]:
    try:
        with closing(open_records(runs, name)) as records:
            return {"run": name, **describe_records(records)}
    except EspalierError as error:
        return {"run": name, "state": "damaged", "error": str(error)}


def describe_records(records: RunRecords) -> dict[str, Any]:
    config, done, folder = read_config(records), records.rounds_done, records.folder
    scored, scores = find_last_scores(records)
    best = select_overall(scores)
    # reading creates an empty log and an index, and does not change the rest
    files = [
        path.stat() for path in (folder / DATABASE, folder / f"{DATABASE}-wal") if path.exists()
    ]
    written = max(file.st_mtime for file in files if file.st_size)
    return {
        "state": find_state(run_lock.is_held(folder), done, config.rounds, read_now(folder)),
        **describe_config(config),
        "rounds_done": done,
        "rounds": config.rounds,
        "accuracy": best[-1].accuracy if best else None,
        "worst_accuracy": min((score.accuracy for score in best), default=None),
        "untrained": list_untrained(best),
        "scored": scored,
        "updated": datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds"),
    }


def render_runs(found: list[dict[str, Any]], runs: Path) -> str:
    """Return the runs as text: a table, then errors and untrained submodels."""
    if not found:
        return describe_missing(runs)
    table = make_table(*COLUMNS)
    errors, untrained = list[str](), list[str]()
    for run in found:
        if "error" in run:
            table.add_row(run["run"], run["state"], *["-"] * 6, "")
            errors.append(f"{run['run']}: {run['error']}")
            continue
        if run["untrained"]:
            untrained.append(f"{run['run']}: {UNTRAINED}: {', '.join(run['untrained'])}")
        table.add_row(
            *(run[key] for key in ("run", "state", "method", "model", "data")),
            f"{run['rounds_done']} of {run['rounds']}",
            *(
                "-" if run[key] is None else f"{run[key]:.3f}"
                for key in ("accuracy", "worst_accuracy")
            ),
            datetime.fromisoformat(run["updated"]).astimezone().strftime("%Y-%m-%d %H:%M"),
        )
    return "\n".join([render_table(table), *errors, *untrained])
