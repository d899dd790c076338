"""Follow a run's releases on a device: download each version for this agent, and report what it
serves. Does not import torch.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from edge_agent.infer.fetch import choose_card, read_card
from edge_agent.infer.release_download import (
    ReleaseDownload,
    find_target,
    strip_folder,
    version_folder,
)
from export.publish import SETTLE
from federated.errors import ExportError, StoreError, brief
from federated.wire import envelope, topics
from federated.wire.delivery_queue import LINK_UP, Delivery
from federated.wire.link import Link, Will
from federated.wire.links.catalogue import open_link
from federated.wire.release_files import Release, Serving, Version

__all__ = ["Arrival", "Follower", "Subscription", "link_of", "will"]

log = logging.getLogger(__name__)

RETRY = 300.0  # seconds before retrying a failed version
# versions kept besides the present and the wanted one; the last good one is among them
KEPT = 2


@dataclass(frozen=True)
class Subscription:
    """Releases that an agent follows.

    run: run to follow; None if the broker has releases of only one run
    name: name of the agent
    submodel: None for the submodel that the release assigns to the agent
    store: versions are stored in store/RUN/VERSION
    session: identifies the agent's process in its reports
    """

    run: str | None
    name: str
    submodel: str | None
    store: Path
    session: str = field(default_factory=lambda: f"s{os.getpid()}")


@dataclass(frozen=True)
class Arrival:
    """A complete version for this agent, with the right digests.

    version: name of the version
    folder: its folder
    submodel: submodel to serve
    canary: whether this agent gets it before others
    """

    version: str
    folder: Path
    submodel: str
    canary: bool


def will(run: str, name: str) -> Will:
    """Return a last will that removes an agent's report when the agent disappears."""
    return topics.serving(run, name), b""


def link_of(broker: str, run: str | None, name: str) -> Link:
    """Open a Follower's link under this agent's name, so that only one process serves as it.
    Raises LinkError, UsageError.
    """
    return open_link(broker, f"infer-{name}", will(run, name) if run else None)


class Follower:
    """Follow a run's releases for one agent; each version for it arrives once. Not thread-safe.

    The first arrival is the present version, even if the store already has it: compare it with the
    version in use. When a canary is withdrawn, the stable version arrives again. `run` is known
    after the first card.
    """

    def __init__(
        self,
        link: Link,
        wanted: Subscription,
        *,
        other: Callable[[Delivery], None] = lambda delivery: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Subscribe to the releases.

        other: receives the link's deliveries that do not concern releases
        """
        self.run, self.name = wanted.run, wanted.name
        self._submodel, self._store = wanted.submodel, wanted.store
        self._link, self._other, self._clock = link, other, clock
        self._serving = Serving(wanted.name, wanted.session)
        self._reported = False
        self._cards: dict[str, Release] = {}
        self._quiet = float("inf")  # without a given run, the time at which all cards have arrived
        self._wanted: tuple[Version, str, bool] | None = None
        self._arriving: ReleaseDownload | None = None
        self._again = float("inf")  # time of the next retry
        self._pattern = topics.release_card(wanted.run or "+")
        link.subscribe(self._pattern)

    def turn(self, timeout: float) -> Arrival | None:
        """Process the link for up to `timeout` seconds, and return an arrival if any. Raises
        LinkError; FleetError if there are several runs to choose from.
        """
        until = self._clock() + timeout
        while True:
            delivery = self._link.receive(max(0.0, min(0.2, until - self._clock())))
            now = self._clock()
            if delivery is not None:
                self._hear(delivery, now)
            self._tick(now)
            if self._arriving is not None and self._arriving.whole:
                return self._arrived(self._arriving)
            if now >= until:
                return None

    def report(self, serving: Serving) -> None:
        """Publish a retained report of what this agent serves, with the last rejected version
        until another one is wanted, and remove unused versions from the store. Raises
        LinkError.
        """
        past = self._serving
        if (
            not serving.refused
            and past.refused
            and past.refused != serving.version
            and self._still(past.refused)
        ):
            serving = replace(serving, refused=past.refused, reason=past.reason)
        self._serving, self._reported = replace(serving, reason=brief(serving.reason)), True
        self._tell()
        if serving.version and (serving.version, serving.refused) != (past.version, past.refused):
            self._prune(serving.version, serving.refused)

    def close(self) -> None:
        """Stop following, and remove the report. The link stays open."""
        self._drop()
        self._link.unsubscribe(self._pattern)
        if self.run is not None:
            self._link.publish(topics.serving(self.run, self.name), b"", retain=True)

    # ---- deliveries ------------------------------------------------------------------------------

    def _hear(self, delivery: Delivery, now: float) -> None:
        if delivery.topic == LINK_UP and self._reported:
            self._tell()  # the broker may have lost the report, or published the will
        card = read_card(delivery)
        try:
            if card is not None:
                self._take(card, now)
            elif self._arriving is None or not self._arriving.hear(delivery, now):
                place = topics.parse(delivery.topic)
                if place is None or place.way != "release":
                    self._other(delivery)
        except (ExportError, StoreError) as error:
            self._refuse(error, now)

    def _tick(self, now: float) -> None:
        if self.run is None and now >= self._quiet:
            self._quiet = float("inf")
            card = choose_card(self._cards, self.name, self._submodel)
            if card is not None:
                self.run = card.run
                if self._reported:
                    self._tell()
        try:
            if self.run is not None and self.run in self._cards:
                self._start(self._cards.pop(self.run), now)
            elif self._wanted is not None and now >= self._again:
                self._begin(now)
        except (ExportError, StoreError) as error:
            self._refuse(error, now)
        if self._arriving is not None:
            self._arriving.tick(now)

    def _take(self, card: Release, now: float) -> None:
        """Record a card. It counts at once if the run is given, or else when all cards have
        arrived.
        """
        self._cards[card.run] = card
        if self.run is None:
            self._quiet = now + SETTLE

    def _start(self, card: Release, now: float) -> None:
        """Download the version that a card assigns to this agent, unless it is present or under
        way.
        """
        meant = find_target(card, self.name, self._submodel)
        if meant is None:
            self._miss(card)
            return
        version, submodel = meant
        wanted = (
            version,
            submodel,
            card.canary is not None
            and version.name == card.canary.name
            and self.name in card.agents,
        )
        same = self._wanted is not None and (self._wanted[0].name, self._wanted[1]) == (
            version.name,
            submodel,
        )
        self._wanted = wanted
        if not same:
            self._begin(now)

    def _miss(self, card: Release) -> None:
        """Handle a card without a submodel for this agent: keep the present version."""
        self._drop()
        self._wanted = None
        version = (
            card.canary if card.canary is not None and self.name in card.agents else card.stable
        )
        if version is not None:
            what = (
                f"submodel '{self._submodel}'"
                if self._submodel
                else f"a submodel for agent '{self.name}' (or choose one with --submodel)"
            )
            self._refused(
                version.name, f"expected {what}, found only {', '.join(version.submodels)}"
            )

    def _begin(self, now: float) -> None:
        assert self._wanted is not None
        assert self.run is not None
        self._drop()
        self._again = float("inf")
        version, submodel, _ = self._wanted
        self._arriving = ReleaseDownload(
            self._link,
            self.run,
            version,
            submodel,
            version_folder(self._store, self.run, version.name),
            now,
        )

    def _arrived(self, arriving: ReleaseDownload) -> Arrival:
        assert self._wanted is not None
        self._drop()
        return Arrival(arriving.version.name, arriving.folder, arriving.submodel, self._wanted[2])

    def _drop(self) -> None:
        if self._arriving is not None:
            self._arriving.close()
            self._arriving = None

    # ---- reports ---------------------------------------------------------------------------------

    def _refuse(self, error: Exception, now: float) -> None:
        """Report that the wanted version failed, and schedule a retry."""
        self._drop()
        self._again = now + RETRY
        if self._wanted is not None:
            self._refused(self._wanted[0].name, strip_folder(self._store, str(error)))

    def _refused(self, version: str, reason: str) -> None:
        log.warning("rejected version %s of run '%s': %s", version, self.run, reason)
        self._serving, self._reported = (
            replace(self._serving, refused=version, reason=brief(reason)),
            True,
        )
        self._tell()
        if self._serving.version:
            self._prune(self._serving.version, version)

    def _tell(self) -> None:
        if self.run is not None:
            self._link.publish(
                topics.serving(self.run, self.name), envelope.encode(self._serving), retain=True
            )

    def _still(self, version: str) -> bool:
        return self._wanted is None or self._wanted[0].name == version

    # ---- the store -------------------------------------------------------------------------------

    def _prune(self, current: str, refused: str) -> None:
        """Remove all versions but the present one, the wanted one, and the last few in use
        before; a failure is only logged.

        The rejected version is removed first, so that it does not displace a good one.
        """
        if self.run is None:
            return
        here = version_folder(self._store, self.run, current)
        wanted = {current, self._wanted[0].name if self._wanted is not None else current}
        try:
            if here.is_dir():
                os.utime(here)
            if refused and (bad := here.with_name(refused)).is_dir():
                os.utime(bad, (0, 0))
            others = [
                path
                for path in here.parent.glob("*")
                if re.match(topics.VERSION, path.name) and path.name not in wanted
            ]
            for path in sorted(others, key=lambda path: path.stat().st_mtime)[:-KEPT]:
                shutil.rmtree(path, ignore_errors=True)
        except OSError as error:
            # another process may remove the same folder, or the disk fails: neither stops the
            # service
            log.warning("cannot remove old versions of run '%s': %s", self.run, error)
