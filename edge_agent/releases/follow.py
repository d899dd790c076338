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
from dataclasses import replace

from edge_agent.releases.release_download import strip_folder, version_folder
from edge_agent.releases.release_watch import Arrival, NotReleased, ReleaseWatch, Subscription
from federated.errors import ExportError, StoreError
from federated.safe_text import make_safe
from federated.wire import envelope, topics
from federated.wire.link import LINK_UP, Delivery, Link, Will
from federated.wire.links.catalogue import open_link
from federated.wire.release_files import Serving

__all__ = ["Follower", "open_follower_link", "will"]

log = logging.getLogger(__name__)

# number of versions kept in addition to the present and the wanted one, so that the last good one
# is among them
KEEP = 2


def will(run: str, name: str) -> Will:
    """Return a last will that removes an agent's report when the agent disappears."""
    return topics.serving(run, name), b""


def open_follower_link(broker: str, run: str | None, name: str) -> Link:
    """Open a Follower's link under this agent's name, so that only one process serves as it.
    Raises LinkError, UsageError.
    """
    return open_link(broker, f"infer-{name}", will(run, name) if run else None)


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
        here, target = version_folder(self._wanted.store, self.run, current), self.target
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
