"""What a person sees of a run: a table that is redrawn on a terminal, lines elsewhere; and the
tables of scores.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coordinator.observe import events
from coordinator.observe.records import RoundRecord, Score
from coordinator.observe.score_summary import best_view, overall
from coordinator.observe.score_text import headline_metrics, metric_text
from federated.runtime.console import Say
from federated.runtime.units import human_bytes
from federated.wire.release_files import marked
from models.submodel import Submodel

if TYPE_CHECKING:
    from coordinator.round.round import Agent

__all__ = ["Lines", "Screen", "closing_table", "score_table"]

NAMED = 8  # agents up to which a line names each
RECENT = 5  # rounds that the estimate of time left goes by
REDRAW = 0.1  # seconds between two drawings, except where something new must be seen at once


class Lines:
    """One line per event, for pipes and log files."""

    def __init__(self, say: Say) -> None:
        self._say = say
        # how many agents there were when it was last said, and when that was
        self._waiting = (-1, -math.inf)
        self._rounds, self._paused, self._delayed = 0, False, ""
        self._ended: list[float] = []  # when rounds ended, by the monotonic clock

    def read(self, event: events.Event) -> None:
        match event:
            case events.AgentsAwaited(ready, wanted):
                self._await(ready, wanted)
            case events.RoundBegan(number, rounds, chosen):
                self._begin(number, rounds, chosen)
            case events.RoundDelayed(why):
                if why != self._delayed:
                    self._say(f"waiting: {why}")
                self._delayed = why
            case events.RunPaused():
                if not self._paused:
                    self._say("paused: no round begins until `coordinator pause --off`")
                self._paused = True
            case events.RoundEnded(done):
                self._end(done)
            case _:
                pass

    def _await(self, ready: int, wanted: int) -> None:
        if ready != self._waiting[0] and time.monotonic() - self._waiting[1] > 1:
            self._waiting = ready, time.monotonic()
            self._say(f"waiting: {ready} of {wanted} agents")

    def _begin(self, number: int, rounds: int, chosen: Mapping[str, Submodel]) -> None:
        self._rounds, self._paused, self._delayed = rounds, False, ""
        self._waiting = (-1, -math.inf)  # the next wait is news again
        self._ended = self._ended or [time.monotonic()]
        names = [f"{agent} {submodel.unowned.name}" for agent, submodel in sorted(chosen.items())]
        if len(names) > NAMED:
            names = [
                f"{count} x {submodel}"
                for submodel, count in sorted(
                    Counter(s.unowned.name for s in chosen.values()).items()
                )
            ]
        self._say(f"round {number} of {rounds}: " + (", ".join(names) or "those at work go on"))

    def _end(self, done: RoundRecord) -> None:
        missing = [f"{e.agent} {e.outcome}" for e in done.entries if e.outcome != "folded"]
        folded = len(done.entries) - len(missing)
        self._say(
            f"round {done.round} took {done.seconds:.1f} s: {folded} of "
            f"{len(done.entries)} updates, "
            f"{human_bytes(done.bytes_up)} up, {human_bytes(done.bytes_down)} down"
            + (f"; {'; '.join(missing)}" if missing else "")
            + self._left(self._rounds - done.round)
        )
        found = overall(done.scores)
        for key, title in headline_metrics(found).items():
            self._say(
                f"  {title} ({found[0].view}): "
                + ", ".join(f"{s.label} {metric_text(s.metrics, key)}" for s in found)
            )

    def _left(self, rounds: int) -> str:
        """An estimate of the time that so many rounds will take, from the last ones."""
        self._ended = [*self._ended[-RECENT:], time.monotonic()]
        if rounds < 1 or len(self._ended) < 2:
            return ""
        seconds = rounds * (self._ended[-1] - self._ended[0]) / (len(self._ended) - 1)
        return (
            f"; about {seconds / 60:.0f} min left"
            if seconds > 90
            else f"; about {seconds:.0f} s left"
        )


@dataclass
class Screen:
    """The same, redrawn in place: round, agents with submodel, state and loss, accuracy per
    submodel.
    """

    console: Console
    agents: Callable[[], Sequence[Agent]]
    title: str
    _round: tuple[int, int] = (0, 0)
    _note: str = ""
    _bytes: list[int] = field(default_factory=lambda: [0, 0])
    _scores: Sequence[Score] = ()
    _drawn: float = 0.0
    _live: Live | None = None

    def __enter__(self) -> Screen:
        self._live = Live(self._draw(), console=self.console, refresh_per_second=8, transient=True)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def read(self, event: events.Event) -> None:
        match event:
            case events.AgentsAwaited(ready, wanted):
                self._note = f"waiting: {ready} of {wanted} agents"
            case events.RoundBegan(number, rounds, chosen):
                self._round, self._note = (number, rounds), f"training on {len(chosen)} agents"
            case events.UpdateFolded(entry):
                self._note = f"folded {entry.agent}"
            case events.RoundDelayed(why):
                self._note = f"waiting: {why}"
            case events.RunPaused():
                self._note = "paused: `coordinator pause --off` resumes it"
            case events.RoundEnded(done):
                self._bytes = [self._bytes[0] + done.bytes_up, self._bytes[1] + done.bytes_down]
                self._scores = done.scores or self._scores
                self._note = f"round {done.round} took {done.seconds:.1f} s"
            case events.FleetChanged():
                pass
            case _:
                return
        self._redraw(
            now=isinstance(event, events.RoundBegan | events.UpdateFolded | events.RoundEnded)
        )

    def _redraw(self, *, now: bool) -> None:
        if self._live is not None and (now or time.monotonic() - self._drawn > REDRAW):
            self._drawn = time.monotonic()
            self._live.update(self._draw())

    def _draw(self) -> Group:
        number, rounds = self._round
        head = Text.assemble(
            (self.title, "bold"),
            f"   round {number} of {rounds}   " if rounds else "   ",
            self._note,
            f"   {human_bytes(self._bytes[0])} up, {human_bytes(self._bytes[1])} down",
        )
        table = Table(
            "agent", "submodel", "state", "loss", box=None, pad_edge=False, header_style="dim"
        )
        for agent in self.agents():
            said = Text(agent.absence or agent.state)  # another's words: text, never markup
            table.add_row(
                agent.name,
                agent.submodel,
                said,
                "" if agent.loss != agent.loss else f"{agent.loss:.3f}",
            )
        return Group(head, table, *([score_table(self._scores)] if self._scores else []))


def score_table(scores: Sequence[Score]) -> Table:
    """What there is to read of each submodel, one column per view."""
    scores = [s for s in scores if not s.agent]
    columns = [
        (key, title, view)
        for key, title in headline_metrics(scores).items()
        for view in sorted({s.view for s in scores})
    ]
    table = Table(
        "submodel",
        *(f"{title} ({view})" for _, title, view in columns),
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    by_key = {(s.submodel, s.view): s.metrics for s in scores}
    for name, label in {s.submodel: s.label for s in scores}.items():
        table.add_row(
            label, *(metric_text(by_key.get((name, view), {}), key) for key, _, view in columns)
        )
    return table


def closing_table(rows: Sequence[tuple[str, str, str, int, int]], scores: Sequence[Score]) -> Table:
    """What each agent carried (name, submodel, the name under which that is scored, parameters,
    MACs), with the accuracy of its submodel.
    """
    view, title = best_view(scores), headline_metrics(scores).get("accuracy", "accuracy")
    found = {s.submodel: s for s in overall(scores)}
    table = Table(
        "agent",
        "submodel",
        "parameters",
        "MACs",
        f"{title} ({view})",
        title="what each agent carried",
    )
    for agent, submodel, scored, parameters, macs in rows:
        score = found.get(scored)
        label = marked(submodel, untrained=score is not None and score.trained_updates == 0)
        table.add_row(
            agent,
            label,
            f"{parameters:,}",
            f"{macs / 1e6:.2f} M",
            metric_text(score.metrics if score else {}, "accuracy"),
        )
    return table
