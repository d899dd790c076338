"""Events as log records, with fields that `coordinator log` can filter by."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from coordinator.observe import events
from coordinator.observe.events import Event, Publish
from coordinator.observe.readers.reader import ReaderContext
from coordinator.observe.score_summary import overall, untrained

__all__ = ["write_log"]

log = logging.getLogger(__name__)


def write_log(context: ReaderContext) -> Publish:
    """Make a reader that writes events to the log, and the round's number to its fields."""
    return LogWriter(context.log_fields).read


class LogWriter:
    """Writes events to the log. fields: of every record of the run's log file, kept up to date."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields, self._paused, self._delayed = fields, False, ""

    def read(self, event: Event) -> None:
        match event:
            case events.RoundDelayed(why):
                if why != self._delayed:
                    log.warning("no round begins: %s", why, extra={"event": "delayed"})
                self._delayed = why
            case events.RunPaused():
                if not self._paused:
                    number = self._fields["round"]
                    log.info("paused after round %d", number, extra={"event": "paused"})
                self._paused = True
            case events.RoundBegan(number):
                self._fields["round"], self._paused, self._delayed = number, False, ""
                log_begin(event)
            case _ if type(event) in WRITERS:
                WRITERS[type(event)](event)
            case _:
                pass


def log_begin(event: events.RoundBegan) -> None:
    log.info(
        "round %d of %d began with %d agents",
        event.round,
        event.rounds,
        len(event.chosen),
        extra={"event": "round began", "asked": len(event.chosen)},
    )


def log_fold(event: events.UpdateFolded) -> None:
    entry = event.entry
    fields = {"agent": entry.agent, "submodel": entry.submodel, "outcome": "folded"}
    numbers = {"loss": entry.loss, "seconds": round(entry.seconds, 3)}
    log.info(
        "%s: folded %s, loss %.3f, %.1f s",
        entry.agent,
        entry.submodel,
        entry.loss,
        entry.seconds,
        extra={"event": "folded", **fields, **numbers},
    )


def log_stage(event: events.StageTook) -> None:
    """A record of each stage but `fold`, which comes with each update."""
    if event.stage != "fold":
        fields = {"event": event.stage, "seconds": round(event.seconds, 4)}
        log.info("%s took %.2f s", event.stage, event.seconds, extra=fields)


def log_end(event: events.RunEnded) -> None:
    fields = {"event": "coordinator ended", "phase": event.phase}
    log.info("the coordinator ends: %s", event.reason, extra=fields)


def log_arrival(event: events.AgentCame) -> None:
    what = "started anew" if event.restarted else "came"
    log.info("%s %s", event.agent, what, extra={"event": "came", "agent": event.agent})


def log_departure(event: events.AgentWent) -> None:
    fields = {"event": "went", "agent": event.agent}
    log.warning("%s %s", event.agent, event.reason, extra=fields)


def log_exclusion(event: events.AgentTurnedAway) -> None:
    fields = {"event": "turned away", "agent": event.agent}
    log.warning("%s cannot take part: %s", event.agent, event.reason, extra=fields)


def log_expiry(event: events.LeaseExpired) -> None:
    log.warning(
        "%s shows no progress %.0f s after it was asked, and no longer counts toward the quorum",
        event.agent,
        event.seconds,
        extra={"event": "lease expired", "agent": event.agent},
    )


def log_failure(event: events.TaskFailed) -> None:
    fields = {"agent": event.agent, "submodel": event.submodel, "outcome": event.outcome}
    log.warning(
        "%s at %s: %s",
        event.agent,
        event.submodel,
        event.outcome,
        extra={"event": "failed", **fields},
    )


def log_rejection(event: events.Rejected) -> None:
    where = {"topic": event.topic} if event.topic else {"transfer": event.transfer}
    fields = {"event": "refused", "agent": event.agent, **where}
    log.warning("refused from %s: %s", event.source, event.reason, extra=fields)


def log_round_end(event: events.RoundEnded) -> None:
    """A record for each task that brought no update, and one for the round."""
    done = event.done
    for entry in done.entries:
        if entry.outcome != "folded":
            settled = {
                "event": "settled",
                "agent": entry.agent,
                "submodel": entry.submodel,
                "outcome": entry.outcome,
            }
            log.info("%s: %s", entry.agent, entry.outcome, extra=settled)
    folded, found = sum(e.outcome == "folded" for e in done.entries), overall(done.scores)
    fields: dict[str, Any] = {
        "seconds": round(done.seconds, 3),
        "folded": folded,
        "asked": len(done.entries),
    }
    fields |= {"bytes_up": done.bytes_up, "bytes_down": done.bytes_down}
    if found:
        fields |= {
            "accuracy": found[-1].accuracy,
            "worst_accuracy": min(s.accuracy for s in found),
            "untrained": untrained(found),
        }
    words = "round %d ended: %d of %d updates, %.1f s"
    log.info(
        words,
        done.round,
        folded,
        len(done.entries),
        done.seconds,
        extra={"event": "round ended", **fields},
    )


WRITERS: Mapping[type, Callable[[Any], None]] = {
    events.AgentCame: log_arrival,
    events.AgentTurnedAway: log_exclusion,
    events.AgentWent: log_departure,
    events.LeaseExpired: log_expiry,
    events.Rejected: log_rejection,
    events.RoundEnded: log_round_end,
    events.RunEnded: log_end,
    events.StageTook: log_stage,
    events.TaskFailed: log_failure,
    events.UpdateFolded: log_fold,
}
