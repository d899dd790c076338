"""What lets people see and steer a run: the readers of its events, and what was asked of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.fleet.fleet import Fleet
from coordinator.observe.events import Event, Publish, RunEnded, Turned, publish_to
from coordinator.observe.readers.log import Log
from coordinator.observe.readers.metrics import Meter, Server
from coordinator.observe.readers.now import Observer
from coordinator.settings.config import Config
from coordinator.store.control import Helm, Stopped
from federated.runtime.clock_jumps import Jumps
from federated.runtime.logs import EVENTS, recording

__all__ = ["Oversight", "overseen"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Oversight:
    """publish: hands an event to all readers of the run. helm: what people asked of the run."""

    publish: Publish
    helm: Helm
    observer: Observer
    meter: Meter | None

    def follow(self, fleet: Fleet) -> None:
        """Show this fleet."""
        self.observer.follow(fleet)
        if self.meter is not None:
            self.meter.follow(fleet)


@contextmanager
def overseen(
    folder: Path, config: Config, read: Publish, server: Server | None, clock: Callable[[], float]
) -> Iterator[Oversight]:
    """The readers of a run, for as long as the context lasts.

    read: the caller's own. server: of metrics; None: nobody wants them. clock: seconds of any
    origin. Raises StoreError.
    """
    observer, logged = Observer(folder, config.name, config.rounds, clock), Log(config.name)
    with ExitStack() as stack:
        meter = None if server is None else Meter(observer, server.registry)
        stack.enter_context(recording(folder / EVENTS, logged.about))
        helm = Helm(folder, clock)
        stack.callback(helm.close)
        if server is not None:
            log.info(
                "metrics at %s",
                server.address,
                extra={"event": "metrics", "address": server.address},
            )
        readers = [
            read,
            logged.read,
            observer.read,
            clock_reader(),
            *([] if meter is None else [meter.read]),
        ]
        publish = publish_to(*readers)
        try:
            yield Oversight(publish, helm, observer, meter)
        except (Stopped, KeyboardInterrupt) as why:
            publish(RunEnded("stopped", str(why) or "interrupted"))
            raise
        except BaseException as why:
            publish(RunEnded("failed", str(why) or type(why).__name__))
            raise
        publish(RunEnded("over", "the run is over"))


def clock_reader() -> Publish:
    """A reader that warns of jumps of the system's clock."""
    jumps = Jumps()

    def read(event: Event) -> None:
        if isinstance(event, Turned) and (jumped := jumps.look()):
            log.warning("%s", jumped)

    return read
