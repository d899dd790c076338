"""What `coordinator status` and `coordinator runs` print, from the folders of runs: while a
coordinator is at work, and when it is gone.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text as Plain

from coordinator.assign.decisions import human_seconds
from coordinator.cli import log
from coordinator.observe.readers.now import STATES, TASKS, Now
from coordinator.observe.readers.now import read as read_now
from coordinator.observe.readers.terminal import human_bytes, measures, told
from coordinator.observe.records import Score
from coordinator.observe.score_summary import overall, untrained
from coordinator.settings.config import Config, load
from coordinator.store import control, run_lock
from coordinator.store.runs import DATABASE, no_run, run_names
from coordinator.store.store import Store
from coordinator.store.training_counts import of_run
from federated.errors import EspalierError, StoreError
from federated.wire.release_files import UNTRAINED

__all__ = ["listed", "listing_text", "status", "text"]

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
    store = Store.open(runs, name or present(runs), read_only=True)
    folder = store.folder
    try:
        held, now, wished = run_lock.held(folder), read_now(folder), control.wishes(folder)
        config, history, scores = configured(store), store.history(), last_scores(store)
        done = store.rounds_done
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
            "errors": log.lately(folder, RECENT),
        }
    finally:
        store.close()


def present(runs: Path) -> str:
    """The run that is under way, the latest where there are several; else the latest. Raises
    StoreError where there is none.
    """
    found = run_names(runs)
    if not found:
        raise StoreError(no_run(runs))
    return next((name for name in reversed(found) if run_lock.held(runs / name)), found[-1])


def configured(store: Store) -> Config:
    """The stored configuration; the keys alone where it is of another version."""
    return load(None, {}, (), base=store.read_facts().config)


def about(config: Config) -> dict[str, Any]:
    return {"method": config.method_name, "model": config.model.name, "data": config.data.name}


def last_scores(store: Store) -> tuple[int, list[Score]]:
    """The scores of the last round that has any, which say how often their submodels were trained
    until then, with its number; 0 without one.
    """
    for number in range(store.rounds_done, 0, -1):
        if found := store.scores(number):
            return number, list(of_run(store, number).mark(found))
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


# ---- all runs ------------------------------------------------------------------------------------


def listed(runs: Path) -> list[dict[str, Any]]:
    """Every run below a folder, the latest last, as plain values; of one that cannot be read,
    why.
    """
    return [one(runs, name) for name in run_names(runs)]


def one(runs: Path, name: str) -> dict[str, Any]:
    try:
        store = Store.open(runs, name, read_only=True)
    except EspalierError as error:
        return {"run": name, "state": "damaged", "error": str(error)}
    with contextlib.closing(store):
        try:
            config, done, (scored, scores) = (
                configured(store),
                store.rounds_done,
                last_scores(store),
            )
        except EspalierError as error:
            return {"run": name, "state": "damaged", "error": str(error)}
        best = overall(scores)
        written = datetime.fromtimestamp(
            max(path.stat().st_mtime for path in store.folder.glob(f"{DATABASE}*")), UTC
        )
        return {
            "run": name,
            "state": state(
                run_lock.held(store.folder), done, config.rounds, read_now(store.folder)
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
        return no_run(runs)
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
        lines += ["lately", *(f"  {log.told(event)}" for event in made["errors"])]
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
        + ", ".join(f"{score.label} {told(score.metrics, key)}" for score in scores)
        for key, title in measures(scores).items()
    ]


def drawn(table: Table) -> str:
    console = Console(width=WIDTH)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip()
