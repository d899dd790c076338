"""Show a run on the terminal: a live table or one line per event, and tables of scores."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from coordinator.observe import events
from coordinator.observe.fleet_scores import (
    VIEWS,
    find_main_view,
    format_metric,
    name_headline_metrics,
    select_overall,
)
from coordinator.observe.round_records import RoundRecord, Score
from federated.runtime.console import Say
from federated.runtime.unit_formatting import format_count, human_bytes
from federated.safe_terminal_table import SafeTable, make_table
from federated.safe_text import make_safe
from federated.wire.release_messages import label_submodel
from models.submodel import Submodel

if TYPE_CHECKING:
    from coordinator.round.round_state import Agent

__all__ = ["LinePrinter", "Screen", "render_agents", "render_scores"]

MAX_NAMED = 8  # agents that a line names one by one
RECENT = 5  # rounds from which the time left is estimated


class LinePrinter:
    """A printer of one line per event, for pipes and log files."""

    def __init__(self, say: Say) -> None:
        self._say, self.read = say, events.skip_repeats(self._read)
        # number of ready agents when last printed, and the time of that
        self._waiting = (-1, -math.inf)
        self._rounds = 0
        self._ended: list[float] = []  # monotonic times at which rounds ended

    def _read(self, event: events.Event) -> None:
        match event:
            case events.AgentsAwaited(ready, wanted):
                self._show_wait(ready, wanted)
            case events.RoundStarted(number, rounds, chosen):
                self._begin(number, rounds, chosen)
            case events.RoundDelayed(why):
                self._say(f"waiting: {why}")
            case events.RunPaused():
                self._say("paused; resume with `coordinator pause --off`")
            case events.LinkChanged() as change:
                self._say(describe_link(change))
            case events.RoundEnded(done):
                self._end(done)
            case _:
                pass

    def _show_wait(self, ready: int, wanted: int) -> None:
        if ready != self._waiting[0] and time.monotonic() - self._waiting[1] > 1:
            self._waiting = ready, time.monotonic()
            self._say(f"waiting: {ready} of {wanted} agents")

    def _begin(self, number: int, rounds: int, chosen: Mapping[str, Submodel]) -> None:
        self._rounds = rounds
        self._waiting = (-1, -math.inf)  # print the next wait, even if it is the same
        self._ended = self._ended or [time.monotonic()]
        names = [f"{agent} {submodel.unowned.name}" for agent, submodel in sorted(chosen.items())]
        if len(names) > MAX_NAMED:
            counts = Counter(submodel.unowned.name for submodel in chosen.values())
            names = [f"{count} x {submodel}" for submodel, count in sorted(counts.items())]
        self._say(
            f"round {number} of {rounds}: " + (", ".join(names) or "agents continue their tasks")
        )

    def _end(self, done: RoundRecord) -> None:
        missing = [f"{e.agent} {e.outcome}" for e in done.entries if e.outcome != "folded"]
        folded = len(done.entries) - len(missing)
        if len(missing) > MAX_NAMED:
            missing[MAX_NAMED:] = [f"and {len(missing) - MAX_NAMED} more"]
        self._say(
            f"round {done.round} took {done.seconds:.1f} s: {folded} of "
            f"{format_count(len(done.entries), 'update')}, "
            f"{human_bytes(done.bytes_up)} up, {human_bytes(done.bytes_down)} down"
            + (f"; {'; '.join(missing)}" if missing else "")
            + self._left(self._rounds - done.round)
        )
        found = select_overall(done.scores)
        for key, title in name_headline_metrics(found).items():
            self._say(
                f"  {title} ({found[0].view}): "
                + ", ".join(f"{s.label} {format_metric(s.metrics, key)}" for s in found)
            )

    def _left(self, rounds: int) -> str:
        """Return the estimated time of the remaining rounds, from the last ones."""
        self._ended = [*self._ended[-RECENT:], time.monotonic()]
        if rounds < 1 or len(self._ended) < 2:
            return ""
        seconds = rounds * (self._ended[-1] - self._ended[0]) / (len(self._ended) - 1)
        time_left = f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
        return f"; about {time_left} left"


def describe_link(change: events.LinkChanged) -> str:
    """Describe a change of the connection to the broker or the store."""
    if not change.lost:
        return f"connected to the {change.to} again"
    return f"lost the connection to the {change.to}: {change.lost}; waiting for it"


@dataclass
class Screen:
    """A live view of the run: the round, the agents with submodel, state and loss, and scores.

    agents: returns the present agents.
    title: of the view.
    """

    agents: Callable[[], Sequence[Agent]]
    title: str
    _round: tuple[int, int] = (0, 0)
    _note: str = ""
    _bytes: list[int] = field(default_factory=lambda: [0, 0])
    _scores: Sequence[Score] = ()

    def read(self, event: events.Event) -> None:
        match event:
            case events.AgentsAwaited(ready, wanted):
                self._note = f"waiting: {ready} of {wanted} agents"
            case events.RoundStarted(number, rounds, chosen):
                self._round = number, rounds
                self._note = f"training on {format_count(len(chosen), 'agent')}"
            case events.UpdateFolded(entry):
                self._note = f"folded {entry.agent}"
            case events.RoundDelayed(why):
                self._note = f"waiting: {why}"
            case events.RunPaused():
                self._note = "paused; resume with `coordinator pause --off`"
            case events.LinkChanged() as change:
                self._note = describe_link(change)
            case events.RoundEnded(done):
                self._bytes = [self._bytes[0] + done.bytes_up, self._bytes[1] + done.bytes_down]
                self._scores = done.scores or self._scores
                self._note = f"round {done.round} took {done.seconds:.1f} s"
            case _:
                pass

    def draw(self) -> Group:
        """Return the view at present, also for another thread than that of the events."""
        number, rounds = self._round
        head = Text.assemble(
            (self.title, "bold"),
            f"   round {number} of {rounds}   " if rounds else "   ",
            make_safe(self._note),
            f"   {human_bytes(self._bytes[0])} up, {human_bytes(self._bytes[1])} down",
        )
        table = make_table("agent", "submodel", "state", "loss")
        for agent in self.agents():
            table.add_row(
                agent.name,
                agent.submodel,
                agent.absence or agent.state,
                "" if math.isnan(agent.loss) else f"{agent.loss:.3f}",
            )
        return Group(head, table, *([render_scores(self._scores)] if self._scores else []))


def render_scores(scores: Sequence[Score]) -> Table:
    """Return a table of the main metrics, with a row per submodel and a column per view."""
    scores = [s for s in scores if not s.agent]
    columns = [
        (key, title, view)
        for key, title in name_headline_metrics(scores).items()
        for view in sorted({s.view for s in scores})
    ]
    table = SafeTable(
        "submodel",
        *(f"{title} ({view})" for _, title, view in columns),
        box=None,
        pad_edge=False,
        header_style="dim",
        caption="; ".join(
            f"{view}: {VIEWS[view]}"
            for view in dict.fromkeys(v for _, _, v in columns if v in VIEWS)
        ),
    )
    by_key = {(s.submodel, s.view): s.metrics for s in scores}
    for name, label in {s.submodel: s.label for s in scores}.items():
        table.add_row(
            label, *(format_metric(by_key.get((name, view), {}), key) for key, _, view in columns)
        )
    return table


def render_agents(rows: Sequence[tuple[str, str, str, int, int]], scores: Sequence[Score]) -> Table:
    """Return a table of the agents' submodels with their accuracy. rows: agent, submodel, the name
    under which it is scored, parameters, MACs.
    """
    view, title = find_main_view(scores), name_headline_metrics(scores).get("accuracy", "accuracy")
    found = {s.submodel: s for s in select_overall(scores)}
    table = SafeTable(
        "agent",
        "submodel",
        "parameters",
        "MACs",
        f"{title} ({view})",
        title="submodels of the agents",
        caption=f"{view}: {VIEWS[view]}" if found else None,
    )
    for agent, submodel, scored, parameters, macs in rows:
        score = found.get(scored)
        label = label_submodel(submodel, untrained=score is not None and score.trained_updates == 0)
        accuracy = format_metric(score.metrics if score else {}, "accuracy")
        table.add_row(agent, label, f"{parameters:,}", f"{macs / 1e6:.2f} M", accuracy)
    return table
