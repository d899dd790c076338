"""The readers of a run's events by name, and how a run publishes to them.

Every run has the readers in ALWAYS. `observe.readers` names more of them: members of READERS, a
`module:function` that makes a reader, or an entry point of the group `espalier.readers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.fleet.fleet import Fleet
from coordinator.observe.events import Event, Publish, RunEnded, Turned
from coordinator.observe.readers.csv_files import write_csv
from coordinator.observe.readers.log import write_log
from coordinator.observe.readers.metrics import MetricsServer, count_metrics
from coordinator.observe.readers.mlflow_tracker import track_by_mlflow
from coordinator.observe.readers.now import write_now
from coordinator.observe.readers.reader import ReaderContext, ReaderFactory
from coordinator.observe.readers.tensorboard import write_tensorboard
from coordinator.settings.config import Config
from coordinator.store.control import Control, Stopped
from federated.runtime.clock_jumps import Jumps
from federated.runtime.logs import EVENTS, recording
from federated.runtime.plugins import find
from models.extensions import Kind

__all__ = ["READERS", "Oversight", "find_readers", "oversee"]

log = logging.getLogger(__name__)


def watch_clock(context: ReaderContext) -> Publish:
    """Make a reader that logs a warning where the system's clock jumps."""
    jumps = Jumps()

    def read(event: Event) -> None:
        if isinstance(event, Turned) and (jumped := jumps.look()):
            log.warning("%s", jumped)

    return read


KIND = Kind("event reader", "espalier.readers")
READERS: Mapping[str, ReaderFactory] = {
    "clock": watch_clock,
    "csv": write_csv,
    "log": write_log,
    "metrics": count_metrics,
    "mlflow": track_by_mlflow,
    "now": write_now,
    "tensorboard": write_tensorboard,
}
ALWAYS = ("log", "now", "clock")


@dataclass(frozen=True)
class Oversight:
    """What lets people see and steer a run.

    publish: hands an event to all readers of the run.
    control: what people asked of the run.
    context: what the readers know of the run.
    """

    publish: Publish
    control: Control
    context: ReaderContext

    def follow(self, fleet: Fleet) -> None:
        """Show the readers this fleet."""
        self.context.fleet = fleet


def find_readers(config: Config) -> dict[str, ReaderFactory]:
    """The factories of a run's readers by name. Raises Unknown, and ConfigError for one that cannot
    be imported.
    """
    served = ("metrics",) if config.metrics.listen else ()
    names = dict.fromkeys((*ALWAYS, *served, *config.observe.readers))
    return {name: find(KIND, name, READERS) for name in names}


@contextmanager
def oversee(
    folder: Path,
    config: Config,
    read: Publish,
    server: MetricsServer | None,
    clock: Callable[[], float],
) -> Iterator[Oversight]:
    """Publish a run's events to its readers, for as long as the context lasts.

    read: the caller's own reader. server: of metrics; None: nobody wants them. clock: gives
    seconds of any origin. Raises StoreError, and what the factories of the readers raise.
    """
    registry = None if server is None else server.registry
    fields = {"run": config.name, "round": 0}
    context = ReaderContext(folder, config, clock, registry, log_fields=fields)
    with ExitStack() as stack:
        stack.enter_context(recording(folder / EVENTS, fields))
        control = Control(folder, clock)
        stack.callback(control.close)
        if server is not None:
            log.info(
                "metrics at %s",
                server.address,
                extra={"event": "metrics", "address": server.address},
            )
        made = [(name, make(context)) for name, make in find_readers(config).items()]
        publish = publish_safely([("of the caller", read), *made])
        try:
            yield Oversight(publish, control, context)
        except (Stopped, KeyboardInterrupt) as why:
            publish(RunEnded("stopped", str(why) or "interrupted"))
            raise
        except BaseException as why:
            publish(RunEnded("failed", str(why) or type(why).__name__))
            raise
        publish(RunEnded("over", "the run is over"))


def publish_safely(readers: Sequence[tuple[str, Publish]]) -> Publish:
    """One function that hands an event to each reader, in this order. A reader that raises is
    logged, and gets no more events.
    """
    kept = dict(readers)

    def publish(event: Event) -> None:
        for name, read in list(kept.items()):
            try:
                read(event)
            except Exception:  # whatever it is, the run goes on
                del kept[name]
                log.exception(
                    "the event reader '%s' failed and gets no more events",
                    name,
                    extra={"event": "reader dropped", "reader": name},
                )

    return publish
