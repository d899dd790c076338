"""The device's half of releases: hears which version is for this agent, brings it here, and reports
what the agent answers with. No torch here.
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

from edge_agent.infer.arrival import Arriving, folder_of, target, within
from edge_agent.infer.fetch import card_of, choose
from export.publish import SETTLE
from federated.errors import ExportError, StoreError, brief
from federated.wire import envelope, topics
from federated.wire.delivery_queue import LINK_UP, Delivery
from federated.wire.link import Link, Will
from federated.wire.links.catalogue import open_link
from federated.wire.release_files import Release, Serving, Version

__all__ = ["Arrival", "Follower", "Subscription", "link_of", "will"]

log = logging.getLogger(__name__)

RETRY = 300.0  # seconds until a version that could not be had is tried again
# versions kept beside the one in use and the one that is wanted: the last good one is among them
KEPT = 2


@dataclass(frozen=True)
class Subscription:
    """Which releases an agent follows.

    run: None if the broker has releases of one run only.
    name: the agent's.
    submodel: None for the one that the release assigns to the agent.
    store: versions are kept in store/RUN/VERSION.
    session: of the agent's process, for its reports.
    """

    run: str | None
    name: str
    submodel: str | None
    store: Path
    session: str = field(default_factory=lambda: f"s{os.getpid()}")


@dataclass(frozen=True)
class Arrival:
    """A version for this agent that arrived complete, with the right digests.

    version: its name.
    folder: where it is.
    submodel: the one to answer with.
    canary: whether this agent gets it before others do.
    """

    version: str
    folder: Path
    submodel: str
    canary: bool


def will(run: str, name: str) -> Will:
    """A last will that takes an agent's report away when the agent vanishes."""
    return topics.serving(run, name), b""


def link_of(broker: str, run: str | None, name: str) -> Link:
    """Open a Follower's link under this agent's name, so that only one process answers for it.

    Raises LinkError, UsageError.
    """
    return open_link(broker, f"infer-{name}", will(run, name) if run else None)


class Follower:
    """Follows a run's releases for one agent; each version that is meant for it arrives once. Not
    thread-safe.

    The first arrival is the present version, even if the store has it already: compare it with
    the version in use. A canary that is taken back makes the stable version arrive again. `run` is
    known once a card was received.
    """

    def __init__(
        self,
        link: Link,
        wanted: Subscription,
        *,
        other: Callable[[Delivery], None] = lambda delivery: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """other: gets the link's deliveries that are not about releases."""
        self.run, self.name = wanted.run, wanted.name
        self._submodel, self._store = wanted.submodel, wanted.store
        self._link, self._other, self._clock = link, other, clock
        self._serving = Serving(wanted.name, wanted.session)
        self._reported = False
        self._cards: dict[str, Release] = {}
        self._quiet = float("inf")  # when, with a run to be guessed, all cards are here
        self._wanted: tuple[Version, str, bool] | None = None
        self._arriving: Arriving | None = None
        self._again = float("inf")  # when what failed is tried again
        self._pattern = topics.release_card(wanted.run or "+")
        link.subscribe(self._pattern)

    def turn(self, timeout: float) -> Arrival | None:
        """Hears the link for up to `timeout` seconds; what arrived. Raises LinkError, and
        FleetError for several runs to choose from.
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
        """Publishes, retained, what this agent answers with; also what it refused, until another
        version is wanted. Raises LinkError.

        Versions in the store that are of no use any more are removed.
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
        """Stops following, and takes the report away. The link stays open."""
        self._drop()
        self._link.unsubscribe(self._pattern)
        if self.run is not None:
            self._link.publish(topics.serving(self.run, self.name), b"", retain=True)

    # ---- what comes ------------------------------------------------------------------------------

    def _hear(self, delivery: Delivery, now: float) -> None:
        if delivery.topic == LINK_UP and self._reported:
            self._tell()  # the broker may have lost it, or published the will
        card = card_of(delivery)
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
            card = choose(self._cards, self.name, self._submodel)
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
        """A run's own card counts at once; with a run to be guessed, when all cards are here."""
        self._cards[card.run] = card
        if self.run is None:
            self._quiet = now + SETTLE

    def _start(self, card: Release, now: float) -> None:
        """Goes for what a card means for this agent, unless that is what it has, or is after,
        already.
        """
        meant = target(card, self.name, self._submodel)
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
        """Nothing in a card is for this agent: it goes on with what it has."""
        self._drop()
        self._wanted = None
        version = (
            card.canary if card.canary is not None and self.name in card.agents else card.stable
        )
        if version is not None:
            what = (
                f"submodel '{self._submodel}'"
                if self._submodel
                else f"a submodel for agent '{self.name}' (or name one by --submodel)"
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
        self._arriving = Arriving(
            self._link,
            self.run,
            version,
            submodel,
            folder_of(self._store, self.run, version.name),
            now,
        )

    def _arrived(self, arriving: Arriving) -> Arrival:
        assert self._wanted is not None
        self._drop()
        return Arrival(arriving.version.name, arriving.folder, arriving.submodel, self._wanted[2])

    def _drop(self) -> None:
        if self._arriving is not None:
            self._arriving.close()
            self._arriving = None

    # ---- what is told ----------------------------------------------------------------------------

    def _refuse(self, error: Exception, now: float) -> None:
        """What was wanted cannot be had: says so, and tries again later."""
        self._drop()
        self._again = now + RETRY
        if self._wanted is not None:
            self._refused(self._wanted[0].name, within(self._store, str(error)))

    def _refused(self, version: str, reason: str) -> None:
        log.warning("version %s of run '%s' is not taken up: %s", version, self.run, reason)
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

    # ---- what is kept ----------------------------------------------------------------------------

    def _prune(self, current: str, refused: str) -> None:
        """Removes versions but the present one, the one that is wanted, and the last few that were
        in use before; if that fails, they stay.

        What was refused is the first to go: it must not drive out what was good.
        """
        if self.run is None:
            return
        here = folder_of(self._store, self.run, current)
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
            # of another process that removes the same, or a failing disk: no reason not to answer
            log.warning("old versions of run '%s' stay: %s", self.run, error)
