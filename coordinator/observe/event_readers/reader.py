"""Define the interface of event readers, and the facts about a run that they may use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from coordinator.fleet.message_loop import MessageLoop
from coordinator.observe.events import Publish
from coordinator.observe.round_records import RoundRecord
from coordinator.settings.config import Config

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["ReaderContext", "ReaderFactory", "round_scalars"]


@dataclass
class ReaderContext:
    """The facts of a run that its readers may use.

    folder: the run's folder, in which readers may write files.
    config: the run's configuration.
    clock: returns seconds of any origin, for durations. Use `time.time` for dates.
    registry: of Prometheus metrics; None if `metrics.listen` is empty.
    fleet: the connected agents; None until the run has them.
    log_fields: fields of each record in the run's log file.
    """

    folder: Path
    config: Config
    clock: Callable[[], float]
    registry: CollectorRegistry | None = None
    fleet: MessageLoop | None = None
    log_fields: dict[str, Any] = field(default_factory=dict)


class ReaderFactory(Protocol):
    """A factory that returns the reader of one run: a function that is called with each event.
    `observe.readers` names the factory, not the reader.

    The reader runs in the coordinator's loop, so it must not block. Some events come several times
    a second: LoopTurned, FleetChanged, AgentsAwaited, RunPaused and RoundDelayed; `skip_repeats`
    drops the repeats of the last two. Events have no time of their own. Encode the fields that you
    need: some are tensors, or mappings with submodels as keys, which JSON cannot hold.
    At the last event, RunEnded, it closes what it opened. The factory raises ConfigError or
    MissingExtra if it cannot work.
    """

    def __call__(self, context: ReaderContext, /) -> Publish: ...


def round_scalars(done: RoundRecord) -> Mapping[str, float]:
    """Return the numbers of a finished round by name: of the round itself, and of each submodel's
    scores over all examples, such as `central/w0.5-d2/accuracy`.
    """
    numbers = {
        "round/seconds": done.seconds,
        "round/asked": float(len(done.entries)),
        "round/folded": float(sum(entry.outcome == "folded" for entry in done.entries)),
        "round/bytes_up": float(done.bytes_up),
        "round/bytes_down": float(done.bytes_down),
    }
    return numbers | {
        f"{score.view}/{score.submodel}/{name}": value
        for score in done.scores
        if not score.agent
        for name, value in score.metrics.items()
    }
