"""What an event reader is, and what it may know of its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from coordinator.fleet.fleet import Fleet
from coordinator.observe.events import Publish
from coordinator.observe.records import RoundRecord
from coordinator.settings.config import Config

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["ReaderContext", "ReaderFactory", "round_scalars"]


@dataclass
class ReaderContext:
    """What a reader may know of the run whose events it reads.

    folder: the run's folder, for the files that a reader writes.
    config: the run's configuration.
    clock: gives seconds of any origin.
    registry: what Prometheus is served; None where `metrics.listen` is empty.
    fleet: the connected agents; None until the run has them.
    log_fields: fields of each record in the run's log file.
    """

    folder: Path
    config: Config
    clock: Callable[[], float]
    registry: CollectorRegistry | None = None
    fleet: Fleet | None = None
    log_fields: dict[str, Any] = field(default_factory=dict)


class ReaderFactory(Protocol):
    """Makes the reader of one run: a function that is called with each event, in order.

    The reader runs in the coordinator's loop, so it must not wait. Its last event is RunEnded,
    where it closes what it opened. Raises ConfigError or MissingExtra where it cannot work.
    """

    def __call__(self, context: ReaderContext, /) -> Publish: ...


def round_scalars(done: RoundRecord) -> Mapping[str, float]:
    """The numbers of a finished round by name: of the round itself, and of each submodel's scores
    over all examples, such as `central/w0.5-d2/accuracy`.
    """
    rounds = {
        "round/seconds": done.seconds,
        "round/asked": float(len(done.entries)),
        "round/folded": float(sum(entry.outcome == "folded" for entry in done.entries)),
        "round/bytes_up": float(done.bytes_up),
        "round/bytes_down": float(done.bytes_down),
    }
    return rounds | {
        f"{score.view}/{score.submodel}/{name}": value
        for score in done.scores
        if not score.agent
        for name, value in score.metrics.items()
    }
