"""Follow the releases of a run, download each version for this agent, and report what it serves; or
download one submodel once, checked against the published digests. Does not import torch.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from edge_agent.access.http_access import describe_http_access
from edge_agent.releases.assigned_release import Arrival, NotReleased, ReleaseWatch, Subscription
from edge_agent.releases.release_download import locate_version, strip_folder
from federated.errors import ExportError, FleetError, StoreError
from federated.runtime.console import show_progress
from federated.safe_text import make_safe
from federated.wire import envelope, topics
from federated.wire.link import LINK_UP, Delivery, Link, Will
from federated.wire.links.catalogue import open_link
from federated.wire.release_messages import Release, Serving, label_submodel

__all__ = ["Follower", "fetch", "fetch_from", "open_follower_link"]

log = logging.getLogger(__name__)

# number of versions kept in addition to the present and the wanted one, so that the last good one
# is among them
KEEP = 2


def make_will(run: str, name: str) -> Will:
    """Return a last will that removes an agent's report when the agent disappears."""
    return topics.serving(run, name), b""


def open_follower_link(broker: str, run: str | None, name: str) -> Link:
    """Open a Follower's link under this agent's name, so that only one process serves as it.
    Raises LinkError, UsageError.
    """
    return open_link(broker, f"infer-{name}", make_will(run, name) if run else None)


class Follower(ReleaseWatch):
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
        super().__init__(link, wanted, other=other, clock=clock)
        self._serving = Serving(wanted.name, wanted.session)
        self._reported = False

    def turn(self, timeout: float) -> Arrival | None:
        """Process the link for up to `timeout` seconds, and return an arrival if any. Raises
        LinkError; FleetError if there are several runs to choose from.
        """
        until, run = self._clock() + timeout, self.run
        while True:
            try:
                arrival = super().turn(until - self._clock())
            except NotReleased as error:  # the present version stays in use
                if error.version:
                    self._reject(error.version, str(error))
            except (ExportError, StoreError) as error:
                self.retry_later()
                assert self.target is not None
                reason = strip_folder(self._wanted.store, str(error))
                self._reject(self.target.version.name, reason)
            else:
                if run is None and self._reported:
                    self._publish()  # the run is known now
                return arrival

    def report(self, serving: Serving) -> None:
        """Publish a retained report of what this agent serves, with the last rejected version
        until another one is wanted, and remove unused versions from the store. Raises
        LinkError.
        """
        past, target = self._serving, self.target
        if (
            not serving.refused
            and past.refused
            and past.refused != serving.version
            and (target is None or target.version.name == past.refused)
        ):
            serving = replace(serving, refused=past.refused, reason=past.reason)
        self._serving, self._reported = replace(serving, reason=make_safe(serving.reason)), True
        self._publish()
        if serving.version and (serving.version, serving.refused) != (past.version, past.refused):
            self._prune(serving.version, serving.refused)

    def close(self) -> None:
        """Stop following, and remove the report. The link stays open."""
        super().close()
        if self.run is not None:
            self._link.publish(topics.serving(self.run, self._wanted.name), b"", retain=True)

    def _pass_on(self, delivery: Delivery) -> None:
        if delivery.topic == LINK_UP and self._reported:
            self._publish()  # the broker may have lost the report, or published the will
        super()._pass_on(delivery)

    def _reject(self, version: str, reason: str) -> None:
        """Report that a version failed."""
        log.warning("rejected version %s of run '%s': %s", version, self.run, reason)
        self._serving = replace(self._serving, refused=version, reason=make_safe(reason))
        self._reported = True
        self._publish()
        if self._serving.version:
            self._prune(self._serving.version, version)

    def _publish(self) -> None:
        if self.run is not None:
            self._link.publish(
                topics.serving(self.run, self._wanted.name),
                envelope.encode(self._serving),
                retain=True,
            )

    def _prune(self, current: str, refused: str) -> None:
        """Remove all versions but the present one, the wanted one, and the last few in use
        before; a failure is only logged.

        The rejected version is removed first, so that it does not displace a good one.
        """
        if self.run is None:
            return
        here, target = locate_version(self._wanted.store, self.run, current), self.target
        needed = {current, target.version.name if target is not None else current}
        try:
            if here.is_dir():
                os.utime(here)
            if refused and (bad := here.with_name(refused)).is_dir():
                os.utime(bad, (0, 0))
            others = [
                path
                for path in here.parent.glob("*")
                if re.match(topics.VERSION, path.name) and path.name not in needed
            ]
            for path in sorted(others, key=lambda path: path.stat().st_mtime)[:-KEEP]:
                shutil.rmtree(path, ignore_errors=True)
        except OSError as error:
            # another process may remove the same folder, or the disk fails: neither stops the
            # service
            log.warning("cannot remove old versions of run '%s': %s", self.run, error)


def fetch_from(
    broker: str, run: str | None, wanted: str, directory: Path, timeout: float
) -> tuple[Path, str]:
    """Call `fetch` over a new link. Raises LinkError, and as `fetch` does."""
    with (
        show_progress("downloading the release"),
        closing(open_link(broker, f"infer-{secrets.token_hex(6)}")) as link,
    ):
        access = describe_http_access(broker)
        return fetch(link, Subscription(run, wanted, None, directory, http=access), timeout)


def fetch(
    link: Link,
    wanted: Subscription,
    timeout: float,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Path, str]:
    """Download the release for an agent or of a submodel. Return its folder,
    `store`/RUN/VERSION, and the submodel.

    The folder holds the manifest, the check and the files of that submodel. Files already there
    with the right digest are not downloaded again.

    wanted: what to download; its name is that of the agent or the submodel
    timeout: seconds in all
    FleetError: there is no such release, there are several runs to choose from, or the download
        timed out. ExportError: a file does not match its card. StoreError: the folder cannot be
        written.
    """
    of, name = f" of run '{wanted.run}'" if wanted.run else "", wanted.name
    with closing(ReleaseWatch(link, wanted, clock=clock)) as watch:
        try:
            arrival = watch.turn(timeout)
        except NotReleased as error:
            listing = _list_releases(watch.cards)
            if error.withdrawn:
                raise FleetError(
                    f"run '{watch.run}' withdrew its release for '{name}'; {listing}"
                ) from None
            raise FleetError(
                f"nothing was released for '{name}'{of}: no agent or submodel has that name; "
                f"{listing} (--submodel)"
            ) from None
    if arrival is not None:
        return arrival.folder, arrival.submodel
    if watch.target is None:
        raise FleetError(
            f"no release{of} at this broker; publish one with: coordinator release RUN "
            "--broker HOST"
        )
    raise FleetError(
        f"release {watch.run}/{watch.target.submodel} (version {watch.target.version.name}) did "
        "not arrive in time; wait longer (--wait), or publish it again"
    )


def _list_releases(cards: dict[str, Release]) -> str:
    stable = [(run, card.stable) for run, card in sorted(cards.items()) if card.stable is not None]
    names = [
        f"{run}/{label_submodel(name, untrained=name in version.untrained)}"
        for run, version in stable
        for name in version.submodels
    ]
    return f"released: {', '.join(names) or 'nothing to all agents, a canary to some'}"
