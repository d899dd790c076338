"""Watch which release a run assigns to one agent, and download it. Does not import torch."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from edge_agent.releases.release_download import (
    ReleaseDownload,
    ReleaseIdentity,
    locate_version,
)
from export.broker_publishing import SETTLE
from federated.errors import EspalierError, FleetError, WireError
from federated.http_transfers.http_client import HttpAccess
from federated.wire import envelope, topics
from federated.wire.link import Delivery, Link
from federated.wire.release_messages import Release, Version

__all__ = ["Arrival", "NotReleased", "ReleaseWatch", "Subscription", "find_target"]

log = logging.getLogger(__name__)

RETRY = 300.0  # seconds before retrying a failed version


@dataclass(frozen=True)
class Subscription:
    """Releases that an agent follows.

    run: run to follow; None if the broker has releases of only one run
    name: name of the agent
    submodel: None for the submodel that the release assigns to the agent
    store: versions are stored in store/RUN/VERSION
    session: identifies the agent's process in its reports
    http: how the agent reaches servers
    """

    run: str | None
    name: str
    submodel: str | None
    store: Path
    session: str = field(default_factory=lambda: f"s{os.getpid()}")
    http: HttpAccess = HttpAccess()  # noqa: RUF009  # frozen


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


@dataclass(frozen=True)
class Target:
    """The version that a card assigns to an agent. canary: before it is released to others."""

    version: Version
    submodel: str
    canary: bool


class NotReleased(EspalierError):
    """The runs released nothing for this agent.

    version: the version that lacks the agent's submodel, or ""
    withdrawn: there was a version for this agent before
    """

    def __init__(self, text: str, version: str = "", *, withdrawn: bool = False) -> None:
        super().__init__(text)
        self.version, self.withdrawn = version, withdrawn


class ReleaseWatch:
    """Watch a run's releases for one agent; each version for it arrives once. Not thread-safe.

    run: known after the first card
    cards: latest card of each run
    target: version for this agent, or None
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
        self.run, self.cards = wanted.run, dict[str, Release]()
        self.target: Target | None = None
        self._wanted, self._link, self._other, self._clock = wanted, link, other, clock
        self._quiet = float("inf")  # without a given run, the time at which all cards have arrived
        self._download: ReleaseDownload | None = None
        self._again = float("inf")  # time of the next retry
        self._pattern = topics.release_card(wanted.run or "+")
        link.subscribe(self._pattern)

    def turn(self, timeout: float) -> Arrival | None:
        """Process the link for up to `timeout` seconds, and return an arrival if any. Raises
        LinkError; FleetError if there are several runs to choose from; NotReleased; ExportError and
        StoreError if the download of `target` fails.
        """
        until = self._clock() + timeout
        while True:
            delivery = self._link.receive(max(0.0, min(0.2, until - self._clock())))
            now = self._clock()
            if delivery is not None and not self._hear(delivery, now):
                self._pass_on(delivery)
            if self.run is None and now >= self._quiet:
                self._choose_run(now)
            if now >= self._again:
                self._start(now)
            if self._download is not None:
                self._download.tick(now)
                if self._download.whole:
                    return self._arrive(self._download)
            if now >= until:
                return None

    def retry_later(self) -> None:
        """Stop the download of `target`, and start it again after RETRY seconds."""
        self._stop()
        self._again = self._clock() + RETRY

    def close(self) -> None:
        """Stop watching. The link stays open."""
        self._stop()
        self._link.unsubscribe(self._pattern)

    def _hear(self, delivery: Delivery, now: float) -> bool:
        """Process a delivery, and return whether it concerns releases."""
        card = _read_card(delivery)
        if card is None:
            if self._download is not None and self._download.hear(delivery, now):
                return True
            place = topics.parse(delivery.topic)
            return place is not None and place.way == "release"
        self.cards[card.run] = card
        if self.run is None:
            self._quiet = now + SETTLE
        elif card.run == self.run:
            self._follow(card, now)
        return True

    def _pass_on(self, delivery: Delivery) -> None:
        """Handle a delivery that does not concern releases."""
        self._other(delivery)

    def _choose_run(self, now: float) -> None:
        """Follow the only run that released something for this agent."""
        self._quiet = float("inf")
        name, submodel = self._wanted.name, self._wanted.submodel
        runs = [run for run, card in self.cards.items() if find_target(card, name, submodel)]
        if len(runs) > 1:
            raise FleetError(
                f"several runs released a network for '{submodel or name}': "
                f"{', '.join(sorted(runs))}; choose one with --run"
            )
        if not runs:
            raise NotReleased(f"no run released a network for '{submodel or name}'")
        self.run = runs[0]
        self._follow(self.cards[self.run], now)

    def _follow(self, card: Release, now: float) -> None:
        """Download the version that a card assigns to this agent, unless it is present or under
        way.
        """
        name, submodel = self._wanted.name, self._wanted.submodel
        before, self.target = self.target, find_target(card, name, submodel)
        if self.target is None:
            self._stop()
            version = _find_version(card, name)
            what = (
                f"submodel '{submodel}'"
                if submodel
                else f"a submodel for agent '{name}' (or choose one with --submodel)"
            )
            found = ", ".join(version.submodels) if version else "no version"
            raise NotReleased(
                f"expected {what}, found only {found}",
                version.name if version else "",
                withdrawn=before is not None,
            )
        if before is None or (before.version.name, before.submodel) != (
            self.target.version.name,
            self.target.submodel,
        ):
            if before is not None and before.submodel not in self.target.version.submodels:
                log.warning(
                    "version %s of run '%s' has no %s: this agent gets %s, as the coordinator "
                    "assigned for that version",
                    self.target.version.name,
                    self.run,
                    before.submodel,
                    self.target.submodel,
                )
            self._start(now)

    def _start(self, now: float) -> None:
        """Start to download `target`."""
        assert self.target is not None
        assert self.run is not None
        self._stop()
        version, submodel = self.target.version, self.target.submodel
        folder = locate_version(self._wanted.store, self.run, version.name)
        identity = ReleaseIdentity(self.run, version, submodel)
        self._download = ReleaseDownload(self._link, identity, folder, now, self._wanted.http)

    def _stop(self) -> None:
        self._again = float("inf")
        if self._download is not None:
            self._download.close()
            self._download = None

    def _arrive(self, download: ReleaseDownload) -> Arrival:
        assert self.target is not None
        self._stop()
        return Arrival(
            download.version.name, download.folder, download.submodel, self.target.canary
        )


def find_target(card: Release, wanted: str, submodel: str | None = None) -> Target | None:
    """Return the version and submodel that a card assigns to an agent, or None.

    wanted: name of an agent, or of a submodel of the stable version
    submodel: overrides the agent's own submodel
    """
    version = _find_version(card, wanted)
    if version is None:
        return None
    chosen = submodel or version.assignment.get(wanted) or wanted
    return Target(version, chosen, version is card.canary) if chosen in version.submodels else None


def _find_version(card: Release, agent: str) -> Version | None:
    return card.canary if card.canary is not None and agent in card.agents else card.stable


def _read_card(delivery: Delivery) -> Release | None:
    """Return the card in a delivery, if it contains one of the topic's run."""
    place = topics.parse(delivery.topic)
    if place is None or place.kind != "card" or not delivery.payload:
        return None
    try:
        message = envelope.decode(delivery.payload)
    except WireError as error:
        log.warning("ignored the releases on %s: %s", delivery.topic, error)
        return None
    return message if isinstance(message, Release) and message.run == place.run else None
