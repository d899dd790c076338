"""Download the files of one submodel of a release once, checked against the digests in the
release card. Does not import torch.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from edge_agent.releases.release_watch import NotReleased, ReleaseWatch, Subscription
from federated.errors import FleetError
from federated.wire.link import Link
from federated.wire.links.catalogue import open_link
from federated.wire.release_files import Release, label_submodel

__all__ = ["fetch", "fetch_from"]


def fetch_from(
    broker: str, run: str | None, wanted: str, directory: Path, timeout: float
) -> tuple[Path, str]:
    """Call `fetch` over a new link. Raises LinkError, and as `fetch` does."""
    with closing(open_link(broker, f"infer-{secrets.token_hex(6)}")) as link:
        return fetch(link, run, wanted, directory, timeout)


def fetch(
    link: Link,
    run: str | None,
    wanted: str,
    directory: Path,
    timeout: float,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Path, str]:
    """Download the release for an agent or of a submodel. Return its folder,
    `directory`/RUN/VERSION, and the submodel.

    The folder holds the manifest, the check and the files of that submodel. Files already there
    with the right digest are not downloaded again.

    run: None if the broker has releases of only one run
    wanted: name of the agent or the submodel
    timeout: seconds in all
    FleetError: there is no such release, there are several runs to choose from, or the download
        timed out. ExportError: a file does not match its card. StoreError: the folder cannot be
        written.
    """
    of = f" of run '{run}'" if run else ""
    with closing(
        ReleaseWatch(link, Subscription(run, wanted, None, directory), clock=clock)
    ) as watch:
        try:
            arrival = watch.turn(timeout)
        except NotReleased as error:
            listing = _list_releases(watch.cards)
            if error.withdrawn:
                raise FleetError(
                    f"run '{watch.run}' withdrew its release for '{wanted}'; {listing}"
                ) from None
            raise FleetError(
                f"nothing was released for '{wanted}'{of}: no agent or submodel has that name; "
                f"{listing} (--submodel)"
            ) from None
    if arrival is not None:
        return arrival.folder, arrival.submodel
    if watch.target is None:
        raise FleetError(
            f"no release{of} at this broker; publish one with: coordinator release RUN"
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
