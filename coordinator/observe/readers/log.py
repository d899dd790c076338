"""Events as log records, with fields that `coordinator log` can filter by."""

from __future__ import annotations

import logging
from typing import Any

from coordinator.observe import events
from coordinator.observe.records import RoundRecord
from coordinator.observe.score_summary import overall, untrained

__all__ = ["Log"]

log = logging.getLogger(__name__)


class Log:
    """Writes events to the log. about: fields of every record, which
    `federated.runtime.logs.recording` adds to the run's file.
    """

    def __init__(self, run: str) -> None:
        self.about: dict[str, Any] = {"run": run, "round": 0}
        self._paused, self._delayed = False, ""

    def read(self, event: events.Event) -> None:
        match event:
            case events.RoundDelayed(why):
                if why != self._delayed:
                    log.warning("no round begins: %s", why, extra={"event": "delayed"})
                self._delayed = why
            case events.RunPaused():
                if not self._paused:
                    log.info(
                        "paused after round %d", self.about["round"], extra={"event": "paused"}
                    )
                self._paused = True
            case events.RoundBegan(number, rounds, chosen):
                self.about["round"], self._paused, self._delayed = number, False, ""
                log.info(
                    "round %d of %d began with %d agents",
                    number,
                    rounds,
                    len(chosen),
                    extra={"event": "round began", "asked": len(chosen)},
                )
            case events.UpdateFolded(entry):
                fields: dict[str, Any] = {
                    "agent": entry.agent,
                    "submodel": entry.submodel,
                    "outcome": "folded",
                }
                fields |= {"loss": entry.loss, "seconds": round(entry.seconds, 3)}
                words = "%s: folded %s, loss %.3f, %.1f s"
                log.info(
                    words,
                    entry.agent,
                    entry.submodel,
                    entry.loss,
                    entry.seconds,
                    extra={"event": "folded", **fields},
                )
            case events.StageTook(stage, seconds) if stage != "fold":
                log.info(
                    "%s took %.2f s",
                    stage,
                    seconds,
                    extra={"event": stage, "seconds": round(seconds, 4)},
                )
            case events.RoundEnded(done):
                log_round(done)
            case events.RunEnded(phase, reason):
                log.info(
                    "the coordinator ends: %s",
                    reason,
                    extra={"event": "coordinator ended", "phase": phase},
                )
            case events.AgentCame(agent, restarted):
                log.info(
                    "%s %s",
                    agent,
                    "started anew" if restarted else "came",
                    extra={"event": "came", "agent": agent},
                )
            case events.AgentWent(agent, reason):
                log.warning("%s %s", agent, reason, extra={"event": "went", "agent": agent})
            case events.AgentTurnedAway(agent, reason):
                log.warning(
                    "%s cannot take part: %s",
                    agent,
                    reason,
                    extra={"event": "turned away", "agent": agent},
                )
            case events.LeaseExpired(agent, seconds):
                words = (
                    "%s shows no progress %.0f s after it was asked, and no longer counts toward "
                    "the quorum"
                )
                log.warning(words, agent, seconds, extra={"event": "lease expired", "agent": agent})
            case events.TaskFailed(agent, submodel, outcome):
                fields = {
                    "event": "failed",
                    "agent": agent,
                    "submodel": submodel,
                    "outcome": outcome,
                }
                log.warning("%s at %s: %s", agent, submodel, outcome, extra=fields)
            case events.Rejected():
                where = {"topic": event.topic} if event.topic else {"transfer": event.transfer}
                log.warning(
                    "refused from %s: %s",
                    event.source,
                    event.reason,
                    extra={"event": "refused", "agent": event.agent, **where},
                )
            case _:
                pass


def log_round(done: RoundRecord) -> None:
    """A record for each task that brought no update, and one for the round."""
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
