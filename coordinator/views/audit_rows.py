"""Collect and format the audit logs of runs and of the certificate authority, for `coordinator
audit`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from coordinator import audit_log
from coordinator.access.certificate_registry import REGISTRY
from coordinator.store.run_folders import DATABASE, list_runs, make_missing_error
from federated.safe_text import make_safe

__all__ = ["format_row", "read_rows"]

AUTHORITY = "authority"  # in place of a run


def read_rows(run: str | None, runs: Path, pki: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what was asked of a run, or else of all runs and of the authority in the folder
    `pki`, as plain values by time, and the damage to these logs, in words. Raises StoreError.
    """
    names = list_runs(runs) if run is None else [run]
    logs = {name: runs / name / DATABASE for name in names}
    if run is None:
        logs[AUTHORITY] = pki / REGISTRY
    elif not logs[run].is_file():
        raise make_missing_error(runs / run)
    rows, damage = list[dict[str, Any]](), list[str]()
    for name, path in logs.items():
        if path.is_file():
            found, damaged = audit_log.read(path)
            rows += [{"log": name, **asdict(one)} for one in found]
            damage += [f"{path}: {one}" for one in damaged]
    return sorted(rows, key=lambda row: str(row["at"])), damage


def format_row(row: dict[str, Any]) -> str:
    """Return one row as a line that is safe to show."""
    who = f"{row['who']} ({row['role']})" if row["role"] else row["who"]
    what = " ".join(part for part in (row["what"], row["about"]) if part)
    time = row["at"].replace("T", " ").replace("+00:00", " UTC")
    return make_safe(f"{time}  {row['log']}: {what}  by {who}, {row['place']}")
