"""Draw the plots of a stored run for `coordinator plot`: accuracy by submodel, bytes, time by
device, and assignment by round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from coordinator.observe.round_records import Entry
from coordinator.store.run_database_reader import RunRecords, open_records
from coordinator.store.run_folders import find_current_run
from coordinator.store.training_counts import count_by_round, mark_scores
from coordinator.views import plot_drawing
from federated.errors import ConfigError, StoreError, explain_os_errors

__all__ = ["plot_run", "render_plots"]


def plot_run(name: str | None, runs: Path, out: Path | None) -> dict[str, Any]:
    """Write the plots of a run, and return their paths, with a reason for each one that the run has
    no data for.

    name: of the run; None: the running one, else the latest.
    out: folder of the plots; None: `results/NAME`.

    Raises StoreError for a run that is missing or has no finished round, ConfigError for a folder
    that cannot be written.
    """
    with closing(open_records(runs, name or find_current_run(runs))) as records:
        run = records.folder.name
        if not records.rounds_done:
            raise StoreError(f"run '{run}' has no finished round: plot it after its first round")
        folder = out or Path("results") / run
        with explain_os_errors(
            ConfigError,
            f"cannot write plots to {folder}",
            remedy="choose another folder with --out",
        ):
            folder.mkdir(parents=True, exist_ok=True)
            skipped = draw_plots(folder, records)
    names = ("accuracy", "bytes", "times", "assignment")
    files = [str(folder / f"{one}.png") for one in names if one not in skipped]
    return {"run": run, "files": files, "skipped": skipped}


def render_plots(made: Mapping[str, Any]) -> str:
    """Return the written files and the skipped plots as text."""
    lines = [f"wrote {file}" for file in made["files"]]
    return "\n".join([*lines, *(f"skipped {name}: {why}" for name, why in made["skipped"].items())])


def draw_plots(folder: Path, records: RunRecords) -> dict[str, str]:
    """Draw every plot that the run has data for. Return why others are skipped, by name."""
    run, skipped = records.folder.name, dict[str, str]()
    submodels = [submodel.name for submodel in records.read_facts().menu]
    if scores := list_scores(records):
        plot_drawing.plot_accuracies(folder / "accuracy.png", [scores], submodels, run)
    else:
        skipped["accuracy"] = "no round was evaluated"
    history = records.read_history()
    traffic = [(number, up, down) for number, _, up, down in history]
    plot_drawing.plot_traffic(folder / "bytes.png", traffic, run)
    entries = {number: records.read_entries(number) for number, *_ in history}
    if times := collect_times(entries):
        plot_drawing.plot_times(folder / "times.png", times, run)
    else:
        skipped["times"] = "no update was folded"
    if assigned := collect_assignments(entries):
        plot_drawing.plot_assignment(folder / "assignment.png", assigned, submodels, run)
    else:
        skipped["assignment"] = "no agent was asked"
    return skipped


def list_scores(records: RunRecords) -> list[dict[str, Any]]:
    """Return the scores of all rounds as plain values, with how often their submodels had been
    trained.
    """
    return [
        {"round": number, **msgspec.to_builtins(score)}
        for number, score in mark_scores(count_by_round(records), records.read_all_scores())
        if not score.agent
    ]


def collect_times(
    entries: Mapping[int, Sequence[Entry]],
) -> dict[str, list[tuple[int, float]]]:
    """Return round and seconds of each folded update, by agent. entries: by round."""
    found: dict[str, list[tuple[int, float]]] = {}
    for number, several in entries.items():
        for entry in several:
            if entry.outcome == "folded" and entry.seconds:
                found.setdefault(entry.agent, []).append((number, entry.seconds))
    return dict(sorted(found.items()))


def collect_assignments(
    entries: Mapping[int, Sequence[Entry]],
) -> dict[str, list[tuple[int, str, bool]]]:
    """Return round, submodel, and whether its update was folded, perhaps in a later round, of each
    task, by agent. entries: by round.
    """
    found: dict[str, dict[int, tuple[str, bool]]] = {}
    for number, several in entries.items():
        for entry in several:
            tasks, task = found.setdefault(entry.agent, {}), entry.task or number
            _, before = tasks.get(task, ("", False))
            tasks[task] = entry.submodel, before or entry.outcome == "folded"
    return {
        agent: [(task, *known) for task, known in sorted(tasks.items())]
        for agent, tasks in sorted(found.items())
    }
