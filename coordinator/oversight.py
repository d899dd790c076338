"""What lets a run be seen and steered while it goes on: the events in its folder, what it does now, wishes, metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.config import Config
from coordinator.control import Helm, Stopped
from coordinator.fleet import Fleet
from coordinator.live import Observer
from coordinator.metrics import Meter, Server
from coordinator.progress import Several, Watch
from federated.clock import Jumps
from federated.logs import EVENTS, recording

__all__ = ["Oversight", "overseen"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Oversight:
    """watch: to be told what happens; helm: to be asked what people wish. follow: to be called with the fleet, once there is one."""

    watch: Watch
    helm: Helm
    observer: Observer
    meter: Meter | None

    def follow(self, fleet: Fleet) -> None:
        self.observer.follow(fleet)
        if self.meter is not None:
            self.meter.follow(fleet)

        jumps = Jumps()

        def look() -> None:
            if said := jumps.look():
                log.warning("%s", said)
            self.observer.tick()
            self.helm.look()

        fleet.each_turn = look


@contextmanager
def overseen(folder: Path, config: Config, watch: Watch, server: Server | None = None) -> Iterator[Oversight]:
    """For as long as the context lasts. server: of metrics, if they are wanted. Raises StoreError."""
    observer = Observer(folder, config.name, config.rounds)
    with ExitStack() as stack:
        meter = None if server is None else Meter(observer, server.registry)
        stack.enter_context(recording(folder / EVENTS, observer.about))
        helm = Helm(folder)
        stack.callback(helm.close)
        if server is not None:
            log.info("metrics at %s", server.address, extra={"event": "metrics", "address": server.address})
        told = Several(watch, observer) if meter is None else Several(watch, observer, meter)
        try:
            yield Oversight(told, helm, observer, meter)
        except (Stopped, KeyboardInterrupt) as why:
            observer.end("stopped", str(why) or "interrupted")
            raise
        except BaseException as why:
            observer.end("failed", str(why) or type(why).__name__)
            raise
        observer.end("over", "the run is over")
