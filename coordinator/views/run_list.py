"""What `coordinator runs` prints: every run below a folder."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from coordinator.observe.now_file import read_now
from coordinator.observe.score_summary import overall, untrained
from coordinator.store import run_lock
from coordinator.store.run_folders import DATABASE, describe_missing, list_runs
from coordinator.store.run_records import open_records
from coordinator.views.run_status import about, configured, drawn, last_scores, state
from federated.errors import EspalierError
from federated.wire.release_files import UNTRAINED

__all__ = ["listed", "listing_text"]


def listed(runs: Path) -> list[dict[str, Any]]:
    """Every run below a folder, the latest last, as plain values; of one that cannot be read,
    why.
    """
    return [one(runs, name) for name in list_runs(runs)]


def one(runs: Path, name: str) -> dict[str, Any]:
    try:
        records = open_records(runs, name)
    except EspalierError as error:
        return {"run": name, "state": "damaged", "error": str(error)}
    with closing(records):
        try:
            config, done, (scored, scores) = (
                configured(records),
                records.rounds_done,
                last_scores(records),
            )
        except EspalierError as error:
            return {"run": name, "state": "damaged", "error": str(error)}
        best = overall(scores)
        written = datetime.fromtimestamp(
            max(path.stat().st_mtime for path in records.folder.glob(f"{DATABASE}*")), UTC
        )
        return {
            "run": name,
            "state": state(
                run_lock.is_held(records.folder), done, config.rounds, read_now(records.folder)
            ),
            **about(config),
            "rounds_done": done,
            "rounds": config.rounds,
            "accuracy": best[-1].accuracy if best else None,
            "worst_accuracy": min((score.accuracy for score in best), default=None),
            "untrained": untrained(best),
            "scored": scored,
            "updated": written.isoformat(timespec="seconds"),
        }


def listing_text(found: list[dict[str, Any]], runs: Path) -> str:
    if not found:
        return describe_missing(runs)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in (
        "run",
        "state",
        "method",
        "model",
        "data",
        "rounds",
        "accuracy",
        "worst",
        "last written",
    ):
        table.add_column(title, no_wrap=title == "run")
    for run in found:
        if "error" in run:
            table.add_row(run["run"], run["state"], *["-"] * 6, "")
            continue
        shares = [
            "-" if run[key] is None else f"{run[key]:.3f}" for key in ("accuracy", "worst_accuracy")
        ]
        when = datetime.fromisoformat(run["updated"]).astimezone().strftime("%Y-%m-%d %H:%M")
        table.add_row(
            run["run"],
            run["state"],
            run["method"],
            run["model"],
            run["data"],
            f"{run['rounds_done']} of {run['rounds']}",
            *shares,
            when,
        )
    marks = [
        f"{run['run']}: {UNTRAINED}: {', '.join(run['untrained'])}"
        for run in found
        if run.get("untrained")
    ]
    return "\n".join(
        [
            drawn(table),
            *(f"{run['run']}: {run['error']}" for run in found if "error" in run),
            *marks,
        ]
    )
