"""The page that `coordinator report` writes on a run: what each device gained, accuracy, who
trained which submodel and why, bytes and time, releases, and the command that repeats the run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

from coordinator.assign.decision_record import Decision
from coordinator.observe.fleet_scores import VIEWS, format_metric
from coordinator.observe.round_records import Entry
from coordinator.release.archive import Archive
from coordinator.release.history import HISTORY, ModelHistory
from coordinator.report.html_elements import (
    Html,
    escape,
    make_code,
    make_details,
    make_figure,
    make_page,
    make_paragraph,
    make_section,
    make_table,
    make_tiles,
)
from coordinator.report.repeat_command import describe_repetition
from coordinator.report.report_gains import describe_gains, format_share, mean
from coordinator.simulate.device_data import SIMULATED
from coordinator.store.run_database_reader import RunRecords, open_records
from coordinator.views.agent_table import describe_agents
from coordinator.views.run_plots import draw_plots, list_scores
from coordinator.views.run_status import describe_end, describe_status, read_config
from coordinator.views.training_energy import estimate_energy, sum_known
from federated.errors import StoreError
from federated.install_command import NAME
from federated.runtime.provenance import commit, versions
from federated.runtime.unit_formatting import (
    format_count,
    human_bytes,
    human_joules,
    human_seconds,
    megabytes,
)

if TYPE_CHECKING:  # it loads PyTorch, which only --compare needs
    from coordinator.simulate.device_gains import Comparison

__all__ = ["build_report"]

MAX_ROWS = 100  # devices or rounds in a table; the others are counted
DARK: Any = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "legend.facecolor"), "#1b1f25"),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), "#e6e9ee"),
    **dict.fromkeys(("xtick.color", "ytick.color"), "#e6e9ee"),
    "legend.edgecolor": "#333a44",
}
PLOTS = {
    "accuracy": "Accuracy of each submodel by round",
    "bytes": "Bytes sent by and to the agents, summed over rounds",
    "times": "Seconds of each agent by round",
    "assignment": "Submodel of each agent by round",
}
METRICS = ("accuracy", "macro_f1", "perplexity", "rmse", "loss")


def build_report(name: str, runs: Path, compared: Sequence[Comparison] | None = None) -> Html:
    """Return the page on a run, which may be running, finished or interrupted.

    compared: what each device gained; None if it was not computed.
    Raises StoreError.
    """
    status, agents = describe_status(name, runs), describe_agents(name, runs)
    with closing(open_records(runs, name)) as records, tempfile.TemporaryDirectory() as folder:
        plots = draw_twice(Path(folder), records) if records.rounds_done else {}
        entries = {number: records.read_entries(number) for number, *_ in records.read_history()}
        rows = agents["agents"][:MAX_ROWS]
        more = count_more(len(agents["agents"]), "device")
        return make_page(
            f"Run {name}",
            *describe_run(status, len(agents["agents"])),
            describe_gains(records, compared, rows, more),
            describe_accuracy(records, plots),
            describe_assignments(records, plots, rows, more),
            describe_costs(records, plots, entries, [row["agent"] for row in rows], more),
            describe_releases(runs, name),
            describe_repeating(records),
            describe_origin(),
        )


def draw_twice(folder: Path, records: RunRecords) -> dict[str, Html]:
    """Draw the plots of a run for light and dark screens, and return them by name."""
    for theme, settings in (("light", {}), ("dark", DARK)):
        (folder / theme).mkdir()
        with mpl.rc_context(settings):
            skipped = draw_plots(folder / theme, records)
    return {
        plot: make_figure(folder / "light" / f"{plot}.png", folder / "dark" / f"{plot}.png", what)
        for plot, what in PLOTS.items()
        if plot not in skipped
    }


def describe_run(status: Mapping[str, Any], agents: int) -> Iterator[Html]:
    """Yield the head of the page: what the run is, and its headline numbers."""
    done, rounds = status["rounds_done"], status["rounds"]
    known = {"running": "running", "over": "finished"}
    state = known.get(status["state"]) or describe_end(dict(status))
    yield Html(f"<h1>Run {escape(status['run'])}</h1>")
    yield make_paragraph(
        f"{status['method']} trains {status['model']} on {status['data']}. "
        "Each device trains the part of one network that it can carry. Its data never leave it.",
        kind="quiet",
    )
    tiles = [
        ("state", state),
        ("rounds", f"{done} of {rounds}"),
        ("devices", agents),
        ("from devices", human_bytes(status["bytes_up"])),
        ("to devices", human_bytes(status["bytes_down"])),
    ]
    if scores := status["scores"]["values"]:
        best = max(scores, key=lambda score: score["accuracy"])
        title = "R2" if "rmse" in best["metrics"] else "accuracy"
        tiles.insert(2, (f"best {title}", format_share(best["accuracy"])))
    yield make_tiles(tiles)


# ---- accuracy, assignment, bytes and time --------------------------------------------------------


def describe_accuracy(records: RunRecords, plots: Mapping[str, Html]) -> Html:
    title, scores = "Accuracy of each submodel", list_scores(records)
    if not scores:
        return make_section(title, make_paragraph("No round was evaluated."))
    view = "central" if any(score["view"] == "central" for score in scores) else "devices"
    shown = {s["submodel"]: s for s in scores if s["view"] == view}
    found = {name for s in shown.values() for name in s["metrics"]}
    metrics = [name for name in METRICS if name in found]
    order = [one.plain.name for one in records.read_facts().menu]
    rows = [
        (
            name,
            *(format_metric(shown[name]["metrics"], metric) for metric in metrics),
            shown[name]["examples"],
            "unknown" if (n := shown[name]["trained_updates"]) is None else n,
            shown[name]["round"],
        )
        for name in dict.fromkeys(order)
        if name in shown
    ]
    heads = ("submodel", *metrics, "examples", "updates that trained it", "after round")
    return make_section(
        title,
        plots.get("accuracy", ""),
        make_paragraph(f"The last scores, {VIEWS[view]}:"),
        make_table(heads, rows, " ".join(map(str, range(1, len(heads))))),
    )


def describe_assignments(
    records: RunRecords,
    plots: Mapping[str, Html],
    rows: Sequence[Mapping[str, Any]],
    more: Html,
) -> Html:
    title = "Who trained which submodel, and why"
    if not rows:
        return make_section(title, make_paragraph("No device has been asked yet."))
    table = [
        (row["agent"], describe_hardware(row["profile"]), *cells)
        for row in rows
        for cells in list_assignments(records.agents.read_decisions(row["agent"]))
    ]
    heads = ("device", "hardware", "rounds", "submodel", "reason")
    return make_section(title, plots.get("assignment", ""), make_table(heads, table), more)


def list_assignments(decisions: Sequence[tuple[int, Decision]]) -> Iterator[tuple[str, str, str]]:
    """Yield the rounds, submodel and reason of each stretch of rounds with the same submodel. A
    reason may name measured times, which differ between rounds: the last one stands.
    """
    for submodel, several in groupby(decisions, key=lambda one: one[1].submodel):
        stretch = list(several)
        first, last = stretch[0][0], stretch[-1][0]
        rounds = str(first) if first == last else f"{first} to {last}"
        yield rounds, submodel or "none", stretch[-1][1].reason


def describe_hardware(profile: Mapping[str, Any] | None) -> str:
    if profile is None:
        return "unknown"
    if profile["host"] == SIMULATED:
        return f"simulated, {profile['system']}"
    board = profile["board"]
    name = board["model"] or (board["kind"] if board["kind"] != "generic" else profile["system"])
    gpu = f", {board['gpu']}" if board["gpu"] else ""
    return f"{name}{gpu}, {profile['cpus']:g} cpus, {megabytes(profile['memory'])}"


def describe_costs(
    records: RunRecords,
    plots: Mapping[str, Html],
    entries: Mapping[int, Sequence[Entry]],
    agents: Sequence[str],
    more: Html,
) -> Html:
    title, history = "Bytes and time", records.read_history()
    if not history:
        return make_section(title, make_paragraph("No round has finished yet."))
    by_agent: dict[str, list[Entry]] = {agent: [] for agent in agents}
    for several in entries.values():
        for entry in several:
            if entry.agent in by_agent:
                by_agent[entry.agent].append(entry)
    energy = estimate_energy(records)
    devices = [
        (agent, *sum_up(several), describe_energy(energy, agent))
        for agent, several in by_agent.items()
        if several
    ]
    rounds = [
        (
            number,
            human_seconds(seconds),
            human_bytes(up),
            human_bytes(down),
            f"{sum(one.outcome == 'folded' for one in entries[number])} of {len(entries[number])}",
        )
        for number, seconds, up, down in history[-MAX_ROWS:]
    ]
    heads = ("device", "tasks", "folded", "examples", "steps", "time per round", "time in all")
    return make_section(
        title,
        plots.get("times", ""),
        make_table((*heads, "energy"), devices, "1 2 3 4 5 6 7"),
        more,
        make_paragraph(
            "Time runs from the task to the accepted update, so it includes transfers. Energy is "
            "the power that the device measured once while it trained, times the duration of "
            "its training steps; it is unknown for a device without power sensors.",
            kind="quiet",
        ),
        plots.get("bytes", ""),
        make_paragraph("Bytes are counted for each round, not for each device.", kind="quiet"),
        make_details(
            f"Each round (the last {MAX_ROWS})" if len(history) > MAX_ROWS else "Each round",
            make_table(
                ("round", "time", "from devices", "to devices", "updates folded"),
                rounds,
                "0 1 2 3 4",
            ),
        ),
    )


def describe_energy(energy: Mapping[int, Mapping[str, float | None]], agent: str) -> str:
    """Return the energy of all trainings of a device."""
    joules = sum_known([one[agent] for one in energy.values() if agent in one])
    return "unknown" if joules is None else human_joules(joules)


def sum_up(entries: Sequence[Entry]) -> tuple[object, ...]:
    """Return the numbers of a device: tasks, folded updates, examples of the last one, steps, mean
    and sum of the seconds.
    """
    folded = [one for one in entries if one.outcome == "folded"]
    total = sum(one.seconds for one in folded)
    average = human_seconds(total / len(folded)) if folded else "-"
    return (
        len(entries),
        len(folded),
        folded[-1].samples if folded else "-",
        sum(one.steps for one in folded),
        average,
        human_seconds(total) if folded else "-",
    )


def count_more(rows: int, noun: str) -> Html:
    """Return how many rows a table leaves out; empty if none."""
    if rows <= MAX_ROWS:
        return Html("")
    return make_paragraph(f"and {format_count(rows - MAX_ROWS, f'more {noun}')}", kind="quiet")


# ---- releases, and the command -------------------------------------------------------------------


def describe_releases(runs: Path, name: str) -> Html:
    """Return the section on releases. A damaged history is named, and hides no other section."""
    title = "Releases"
    if not (runs / name / "releases" / HISTORY).exists():
        return make_section(title, make_paragraph("Nothing was released to devices that infer."))
    try:
        history = Archive(runs, name).read()
    except StoreError as error:
        return make_section(title, make_paragraph(str(error)))
    return make_section(title, *describe_history(history))


def describe_history(history: ModelHistory) -> Iterator[Html]:
    roles = ((history.stable, "stable"), (history.canary, "canary"), (history.previous, "previous"))
    named = {version: role for version, role in reversed(roles) if version}
    if history.canary:
        on = ", ".join(history.agents)
        yield make_paragraph(f"Version {history.canary} is a canary on {on}.")
    versions = []
    for version, item in history.items.items():
        reports = [one for one in item.reports.values() if one.version == version]
        refused = [one for one in item.reports.values() if one.refused == version]
        scores = [one.accuracy for one in reports if one.accuracy is not None]
        versions.append(
            (
                version,
                item.version.round,
                named.get(version, "withdrawn or replaced"),
                len(reports),
                len(refused),
                format_share(mean(scores)),
            )
        )
    heads = ("version", "round", "state", "devices that serve it", "that refused it", "accuracy")
    yield make_table(heads, versions, "1 3 4 5")
    events = [
        (
            event.time[:19].replace("T", " "),
            event.version,
            event.what,
            "; ".join(event.reasons) or ", ".join(event.agents),
        )
        for event in history.events
    ]
    yield make_table(("time (UTC)", "version", "event", "reasons or devices"), events)


def describe_repeating(records: RunRecords) -> Html:
    config, profiles = read_config(records), records.agents.read_profiles()
    simulated = bool(profiles) and all(one.host == SIMULATED for one in profiles.values())
    lines, note = describe_repetition(config, profiles, simulated=simulated)
    return make_section(
        "Repeat this run", make_code(lines) if lines else "", make_paragraph(note, kind="quiet")
    )


def describe_origin() -> Html:
    version, made = versions((NAME,))[NAME], datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    at = f", commit {found[:12]}" if (found := commit()) else ""
    text = escape(f"Written by coordinator report, {NAME} {version}{at}, {made}.")
    return Html(f"<footer>{text}</footer>")
