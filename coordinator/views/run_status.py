"""What `coordinator status` prints, from the folder of a run: while a coordinator works on it, and
when none does.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text as Plain

from coordinator.observe.now_file import STATES, TASKS, Now, read_now
from coordinator.observe.records import Score
from coordinator.observe.score_summary import overall
from coordinator.observe.score_text import headline_metrics, metric_text
from coordinator.settings.config import Config, read_tables
from coordinator.store import control, run_lock
from coordinator.store.run_folders import find_current_run
from coordinator.store.run_records import RunRecords, open_records
from coordinator.store.training_counts import count_run
from coordinator.views import run_log
from federated.runtime.units import human_bytes, human_seconds

__all__ = ["about", "configured", "drawn", "last_scores", "state", "status", "text"]

RECENT = 5  # rounds that the estimate of time left goes by, and errors that are shown
SILENT = 10.0  # seconds without a sign of the coordinator that are worth a word
WIDTH = 150
SHOWN = 40  # agents in the table; the rest is counted


def status(name: str | None, runs: Path) -> dict[str, Any]:
    """A run as plain values; without a name the one that a coordinator holds, else the latest.
    Raises StoreError.

    state: running, over, stopped (in order), failed (with a reason) or dead (its coordinator ended
    without a word); all but `over` can be resumed.
    """
    records = open_records(runs, name or find_current_run(runs))
    folder = records.folder
    try:
        held, now, wished = (
            run_lock.is_held(folder),
            read_now(folder),
            control.read_requests(folder),
        )
        config, history, scores = configured(records), records.history(), last_scores(records)
        done = records.rounds_done
        return {
            "run": folder.name,
            **about(config),
            "state": state(held, done, config.rounds, now),
            "rounds_done": done,
            "rounds": config.rounds,
            "eta": eta(history, config.rounds - done) if held else None,
            "scores": {
                "round": scores[0],
                "values": [msgspec.to_builtins(score) for score in overall(scores[1])],
            },
            "bytes_up": sum(up for *_, up, _ in history),
            "bytes_down": sum(down for *_, down in history),
            "wishes": msgspec.to_builtins(wished) if held else None,
            "silent": age(now) if held and now else None,
            "now": msgspec.to_builtins(now) if now else None,
            "errors": run_log.lately(folder, RECENT),
        }
    finally:
        records.close()


def configured(records: RunRecords) -> Config:
    """The stored configuration; the keys alone where it is of another version."""
    return read_tables(records.read_facts().config)


def about(config: Config) -> dict[str, Any]:
    return {"method": config.method_name, "model": config.model.name, "data": config.data.name}


def last_scores(records: RunRecords) -> tuple[int, list[Score]]:
    """The scores of the last round that has any, which say how often their submodels were trained
    until then, with its number; 0 without one.
    """
    for number in range(records.rounds_done, 0, -1):
        if found := records.scores(number):
            return number, list(count_run(records, number).mark(found))
    return 0, []


def state(held: bool, done: int, rounds: int, now: Now | None) -> str:
    if held:
        return "running"
    if done >= rounds or (now is not None and now.phase == "over"):
        return "over"
    return (
        now.phase
        if now is not None and now.phase in ("stopped", "failed")
        else "dead"
        if now is not None
        else "stopped"
    )


def eta(history: list[tuple[int, float, int, int]], left: int) -> float | None:
    """Seconds that the rounds left will take, as the last ones did; None where nothing speaks for
    it.
    """
    lately = [seconds for _, seconds, *_ in history[-RECENT:]]
    return left * sum(lately) / len(lately) if lately and left > 0 else None


def age(now: Now) -> float:
    """Seconds since the coordinator wrote."""
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(now.updated)).total_seconds())


# ---- one run as text -----------------------------------------------------------------------------


def text(made: dict[str, Any]) -> str:
    """For a person: what the run is, what happens now, who is here, how good it is, what went
    wrong.
    """
    lines = [
        f"run '{made['run']}': {made['method']} of {made['model']} on {made['data']}",
        *happening(made),
        *traffic(made),
        *quality(made),
    ]
    if made["errors"]:
        lines += ["lately", *(f"  {run_log.told(event)}" for event in made["errors"])]
    if made["state"] in ("stopped", "failed", "dead"):
        lines.append(f"go on with: coordinator start --name {made['run']} --resume")
    return "\n".join(lines)


def happening(made: dict[str, Any]) -> list[str]:
    now, done = made["now"], f"{made['rounds_done']} of {made['rounds']} rounds done"
    if made["state"] != "running":
        said = f"ended by an error: {now['reason']}" if made["state"] == "failed" else ""
        words = (
            said
            or {
                "over": "over",
                "stopped": "stopped in order",
                "dead": "no coordinator: the last one ended without a word",
            }[made["state"]]
        )
        doing = (
            f", while it was in round {now['round']} ({now['phase']})"
            if made["state"] == "dead" and now["round"] > made["rounds_done"]
            else ""
        )
        return [f"{words}{doing}; {done}"]
    if now is None:
        return [f"a coordinator is at work (starting, or computing); {done}"]
    head = f"{phase(now)}; {done}" + (
        f", about {human_seconds(made['eta'])} left" if made["eta"] else ""
    )
    lines = [
        head
        + (
            f"; no sign of the coordinator for {human_seconds(made['silent'])}"
            if made["silent"] > SILENT
            else ""
        )
    ]
    wished = made["wishes"]
    if wished["paused"] and now["phase"] != "paused":
        lines.append(
            "begins no round until the pause is taken back"
            if now["phase"] == "waiting"
            else "pauses after the present round"
        )
    if wished["stop"]:
        lines.append(
            "stops after the present round" if wished["stop"] == "stop" else "stops at once"
        )
    if now["tasks"]:
        lines.append("tasks: " + counted(now["tasks"], TASKS))
    lines.append("agents: " + (counted(now["agents"], STATES) or "none yet"))
    return [*lines, *([drawn(people(now["members"]))] if now["members"] else [])]


def phase(now: dict[str, Any]) -> str:
    match now["phase"]:
        case "waiting":
            return f"waiting for {now['wanted']} agents"
        case "paused":
            return (
                f"paused after round {now['round']} (coordinator pause {now['run']} --off goes on)"
            )
        case "between":
            return f"between rounds, after round {now['round']}" if now["round"] else "beginning"
        case word:
            return f"in round {now['round']} of {now['rounds']}: {word}"


def counted(counts: dict[str, int], order: tuple[str, ...]) -> str:
    return ", ".join(f"{counts[word]} {word}" for word in order if counts.get(word))


def shown(text: str) -> Plain:
    """Others' words, which move no cursor."""
    return Plain("".join(c if c.isprintable() else " " for c in text))


def people(members: list[dict[str, Any]]) -> Table:
    table = Table(
        "agent", "submodel", "state", "task", "loss", box=None, pad_edge=False, header_style="dim"
    )
    for member in members[:SHOWN]:
        said = (
            shown(member["reason"])
            if member["reason"] and member["state"] not in ("gone", "measuring")
            else member["state"]
        )
        table.add_row(
            Plain(member["agent"]),
            Plain(member["submodel"]),
            said,
            member["task"],
            "" if member["loss"] is None else f"{member['loss']:.3f}",
        )
    if len(members) > SHOWN:
        table.add_row(f"and {len(members) - SHOWN} more")
    return table


def traffic(made: dict[str, Any]) -> list[str]:
    now, moved = (
        made["now"],
        f"{human_bytes(made['bytes_up'])} up, {human_bytes(made['bytes_down'])} down in "
        "finished rounds",
    )
    if now is not None and now["epsilon"] is not None:
        moved += f"; epsilon {now['epsilon']:.4g}"
    if made["state"] != "running" or now is None:
        return [moved]
    queues = (
        f"{now['receiving']} updates coming in, {now['waiting']} in line, {now['queued']} "
        "messages waiting"
    )
    return [
        f"{moved}; {queues}; spool {now['spool_files']} files, {human_bytes(now['spool_bytes'])}"
    ]


def quality(made: dict[str, Any]) -> list[str]:
    scores = [msgspec.convert(score, Score) for score in made["scores"]["values"]]
    head = f"after round {made['scores']['round']}"
    return [
        f"{head}: {title} ({scores[0].view}) "
        + ", ".join(f"{score.label} {metric_text(score.metrics, key)}" for score in scores)
        for key, title in headline_metrics(scores).items()
    ]


def drawn(table: Table) -> str:
    console = Console(width=WIDTH)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip()
