"""Download the files of one submodel of a release once, checked against the digests in the
release card. Does not import torch.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from edge_agent.infer.release_download import ReleaseDownload, find_target, version_folder
from export.publish import SETTLE
from federated.errors import FleetError, WireError
from federated.wire import envelope, topics
from federated.wire.delivery_queue import Delivery
from federated.wire.link import Link
from federated.wire.links.catalogue import open_link
from federated.wire.release_files import Release, Version, marked

__all__ = ["choose_card", "fetch", "fetch_from", "read_card"]

log = logging.getLogger(__name__)

Clock = Callable[[], float]


def fetch_from(
    broker: str, run: str | None, wanted: str, directory: Path, timeout: float
) -> tuple[Path, str]:
    """Call `fetch` over a new link. Raises LinkError, and as `fetch` does."""
    link = open_link(broker, f"infer-{secrets.token_hex(6)}")
    try:
        return fetch(link, run, wanted, directory, timeout)
    finally:
        link.close()


def fetch(
    link: Link,
    run: str | None,
    wanted: str,
    directory: Path,
    timeout: float,
    *,
    clock: Clock = time.monotonic,
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
    until = clock() + timeout
    pattern = topics.release_card(run or "+")
    link.subscribe(pattern)
    arriving = None
    try:
        card = _find_card(link, run, wanted, until, clock)
        while True:
            version, submodel = _require_target(card, wanted)
            arriving = ReleaseDownload(
                link,
                card.run,
                version,
                submodel,
                version_folder(directory, card.run, version.name),
                clock(),
            )
            newer = _follow(link, arriving, card, wanted, until, clock)
            if newer is None:
                return arriving.folder, submodel
            arriving.close()
            card = newer
    finally:
        link.unsubscribe(pattern)
        if arriving is not None:
            arriving.close()


def read_card(delivery: Delivery) -> Release | None:
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


def choose_card(
    cards: dict[str, Release], wanted: str, submodel: str | None = None
) -> Release | None:
    """Return the card of the only run that released something for `wanted`. FleetError: several
    runs did.
    """
    found = [run for run, card in cards.items() if find_target(card, wanted, submodel) is not None]
    if len(found) > 1:
        raise FleetError(
            f"several runs released a network for '{submodel or wanted}': "
            f"{', '.join(sorted(found))}; choose one with --run"
        )
    return cards[found[0]] if found else None


def _find_card(link: Link, run: str | None, wanted: str, until: float, clock: Clock) -> Release:
    """Wait for the right card: a given run's own card, or else all cards."""
    cards: dict[str, Release] = {}
    quiet = until
    while (now := clock()) < quiet:
        delivery = link.receive(max(0.0, min(0.2, quiet - now)))
        card = None if delivery is None else read_card(delivery)
        if card is not None:
            cards[card.run] = card
            quiet = min(until, clock() + SETTLE)
            if run is not None and find_target(card, wanted) is not None:
                return card
    found = choose_card(cards, wanted)
    if found is not None:
        return found
    of = f" of run '{run}'" if run else ""
    if not cards:
        raise FleetError(
            f"no release{of} at this broker; publish one with: coordinator release RUN"
        )
    raise FleetError(
        f"nothing was released for '{wanted}'{of}: no agent or submodel has that name; "
        f"{_list_releases(cards)} (--submodel)"
    )


def _list_releases(cards: dict[str, Release]) -> str:
    stable = [(run, card.stable) for run, card in sorted(cards.items()) if card.stable is not None]
    names = [
        f"{run}/{marked(name, untrained=name in version.untrained)}"
        for run, version in stable
        for name in version.submodels
    ]
    return f"released: {', '.join(names) or 'nothing to all agents, a canary to some'}"


def _require_target(card: Release, wanted: str) -> tuple[Version, str]:
    found = find_target(card, wanted)
    if found is None:
        raise FleetError(
            f"run '{card.run}' withdrew its release for '{wanted}'; "
            f"{_list_releases({card.run: card})}"
        )
    return found


def _follow(
    link: Link, arriving: ReleaseDownload, card: Release, wanted: str, until: float, clock: Clock
) -> Release | None:
    """Continue the download until it is complete (None), or return a newer card for another
    version. FleetError: timeout.
    """
    while not arriving.whole:
        if clock() >= until:
            name = f"{card.run}/{arriving.submodel}"
            raise FleetError(
                f"release {name} (version {arriving.version.name}) did not arrive in "
                "time; wait longer (--wait), or publish it again"
            )
        delivery = link.receive(max(0.0, min(0.2, until - clock())))
        arriving.tick(clock())
        if delivery is None or arriving.hear(delivery, clock()):
            continue
        newer = read_card(delivery)
        if (
            newer is not None
            and newer.run == card.run
            and _require_target(newer, wanted)[0].name != arriving.version.name
        ):
            return newer
    return None
