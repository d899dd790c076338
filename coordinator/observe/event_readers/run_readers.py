"""Make the event readers of a run, and pass its events to them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from coordinator.observe.event_readers.catalogue import POINT, find_readers
from coordinator.observe.event_readers.metrics_server import MetricsServer
from coordinator.observe.event_readers.reader import ReaderContext, ReaderFactory
from coordinator.observe.events import Event, Publish, RunEnded
from coordinator.settings.config import Config
from coordinator.store.control_requests import Control, Stopped
from federated.errors import ConfigError
from federated.runtime.extension_errors import report_failure
from federated.runtime.logs import EVENTS, record_log

__all__ = ["Oversight", "make_reader", "oversee", "publish_safely"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Oversight:
    """Observation and control of a run.

    publish: passes an event to all readers of the run.
    control: requests to pause or stop the run.
    context: facts for the readers, to which the run adds its fleet.
    """

    publish: Publish
    control: Control
    context: ReaderContext


@contextmanager
def oversee(
    folder: Path,
    config: Config,
    read: Publish,
    server: MetricsServer | None,
    clock: Callable[[], float],
) -> Iterator[Oversight]:
    """Publish a run's events to its readers while the context lasts.

    read: the caller's own reader.
    server: of metrics; None: no metrics.
    clock: returns seconds of any origin.
    Raises StoreError, and the errors of the readers' factories.
    """
    registry = None if server is None else server.registry
    fields = {"run": config.name, "round": 0}
    context = ReaderContext(folder, config, clock, registry, log_fields=fields)
    with ExitStack() as stack:
        stack.enter_context(record_log(folder / EVENTS, fields))
        control = Control(folder, clock)
        stack.callback(control.close)
        if server is not None:
            extra = {"event": "metrics", "address": server.address}
            log.info("metrics at %s", server.address, extra=extra)
        readers = {
            name: make_reader(name, make, context) for name, make in find_readers(config).items()
        }
        publish = publish_safely({"of the caller": read, **readers})
        try:
            yield Oversight(publish, control, context)
        except (Stopped, KeyboardInterrupt) as why:
            publish(RunEnded("stopped", str(why) or "interrupted"))
            raise
        except BaseException as why:
            publish(RunEnded("failed", str(why) or type(why).__name__))
            raise
        publish(RunEnded("over", "the run is over"))


def make_reader(name: str, make: ReaderFactory, context: ReaderContext) -> Publish:
    """Return the reader that a factory makes. Raises ConfigError if it makes none, and the errors
    of the factory.
    """
    with report_failure(POINT.noun, name):
        read: Any = make(context)
    if not callable(read):
        raise ConfigError(
            f"event reader '{name}' returned a {type(read).__name__}, expected a function of an "
            "event: name a function that takes a ReaderContext and returns the reader"
        )
    return cast(Publish, read)


def publish_safely(readers: dict[str, Publish]) -> Publish:
    """Return a function that passes an event to each reader, in this order. A reader that raises is
    logged and removed.
    """

    def publish(event: Event) -> None:
        for name, read in list(readers.items()):
            try:
                read(event)
            except Exception:  # a reader must not end the run
                del readers[name]
                log.exception(
                    "the event reader '%s' failed and gets no further events",
                    name,
                    extra={"event": "reader dropped", "reader": name},
                )

    return publish
