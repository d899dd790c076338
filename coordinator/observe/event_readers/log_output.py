"""Write events to the log, with fields by which `coordinator log` filters."""

from __future__ import annotations

import logging
from logging import INFO, WARNING
from typing import Any

from coordinator.observe import events
from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.events import Event, Publish, skip_repeats
from coordinator.observe.fleet_scores import list_untrained, select_overall
from coordinator.observe.round_records import RoundRecord
from federated.runtime.unit_formatting import format_count

__all__ = ["write_log"]

log = logging.getLogger(__name__)


def write_log(context: ReaderContext) -> Publish:
    """Make a reader that writes events to the log, and the round's number to its fields."""
    fields = context.log_fields

    def read(event: Event) -> None:
        match event:
            case events.RunPaused():
                write(INFO, "paused", f"paused after round {fields['round']}")
            case events.RoundStarted(number, rounds, chosen):
                fields["round"] = number
                text = (
                    f"round {number} of {rounds} started with {format_count(len(chosen), 'agent')}"
                )
                write(INFO, "round began", text, asked=len(chosen))
            case events.RoundEnded(done):
                write_round(done)
            case _:
                write_event(event)

    return skip_repeats(read)


def write(level: int, event: str, text: str, **fields: Any) -> None:
    """Write a log record. event: the field by which people filter."""
    log.log(level, "%s", text, extra={"event": event, **fields})


def write_event(event: Event) -> None:
    """Write the record of an event that needs no earlier ones; ignore the most frequent ones."""
    match event:
        case events.UpdateFolded(entry):
            done = f"folded {entry.submodel}, loss {entry.loss:.3f}, {entry.seconds:.1f} s"
            fields = {"agent": entry.agent, "submodel": entry.submodel, "outcome": "folded"}
            numbers = {"loss": entry.loss, "seconds": round(entry.seconds, 3)}
            write(INFO, "folded", f"{entry.agent}: {done}", **fields, **numbers)
        case events.RoundDelayed(why):
            write(WARNING, "delayed", f"no round starts: {why}")
        case events.LinkChanged("", to):
            write(INFO, f"{to} returned", f"connected to the {to} again")
        case events.LinkChanged(lost, to):
            write(WARNING, f"{to} lost", f"lost the connection to the {to}: {lost}")
        case events.StageFinished(stage, seconds, _) if stage != "fold":  # one per update
            write(INFO, stage, f"{stage} took {seconds:.2f} s", seconds=round(seconds, 4))
        case events.RunEnded(phase, reason):
            write(INFO, "coordinator ended", f"the coordinator stopped: {reason}", phase=phase)
        case events.AgentJoined(agent, restarted):
            write(INFO, "came", f"{agent} {'restarted' if restarted else 'joined'}", agent=agent)
        case events.AgentLeft(agent, reason):
            write(WARNING, "went", f"{agent} {reason}", agent=agent)
        case events.AgentRefused(agent, reason):
            write(WARNING, "agent refused", f"{agent} was refused: {reason}", agent=agent)
        case events.LeaseExpired(agent, seconds):
            idle = f"made no progress for {seconds:.0f} s; no longer counted toward the quorum"
            write(WARNING, "lease expired", f"{agent} {idle}", agent=agent)
        case events.TaskFailed(agent, submodel, outcome):
            fields = {"agent": agent, "submodel": submodel, "outcome": outcome}
            write(WARNING, "failed", f"{agent}: {submodel}: {outcome}", **fields)
        case events.Rejected(_, source, reason, agent, transfer, topic):
            where = {"topic": topic} if topic else {"transfer": transfer}
            write(WARNING, "refused", f"rejected from {source}: {reason}", agent=agent, **where)
        case _:
            pass


def write_round(done: RoundRecord) -> None:
    """Write a record for each task without an update, and one for the round."""
    for entry in done.entries:
        if entry.outcome != "folded":
            fields = {"agent": entry.agent, "submodel": entry.submodel, "outcome": entry.outcome}
            write(INFO, "settled", f"{entry.agent}: {entry.outcome}", **fields)
    folded, asked = sum(entry.outcome == "folded" for entry in done.entries), len(done.entries)
    scores: dict[str, Any] = {}
    if found := select_overall(done.scores):
        scores = {
            "accuracy": found[-1].accuracy,
            "worst_accuracy": min(s.accuracy for s in found),
            "untrained": list_untrained(found),
        }
    write(
        INFO,
        "round ended",
        f"round {done.round} ended: {folded} of {asked} updates, {done.seconds:.1f} s",
        seconds=round(done.seconds, 3),
        folded=folded,
        asked=asked,
        bytes_up=done.bytes_up,
        bytes_down=done.bytes_down,
        **scores,
    )
