"""A release from a broker into a folder, once: the files of one submodel, checked against the
digests that the card vouches for. No torch here.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from edge_agent.infer.arrival import Arriving, folder_of, target
from export.publish import SETTLE
from federated.errors import FleetError, WireError
from federated.wire import envelope, topics
from federated.wire.delivery_queue import Delivery
from federated.wire.link import Link
from federated.wire.links.catalogue import open_link
from federated.wire.release_files import Release, Version, marked

__all__ = ["card_of", "choose", "fetch", "fetch_from"]

log = logging.getLogger(__name__)

Clock = Callable[[], float]


def fetch_from(
    broker: str, run: str | None, wanted: str, directory: Path, timeout: float
) -> tuple[Path, str]:
    """`fetch` over a link of its own; the folder, and the submodel that was wanted. Raises
    LinkError, and what `fetch` raises.
    """
    link = open_link(broker, f"infer-{secrets.token_hex(6)}")
    try:
        return _fetched(link, run, wanted, directory, timeout, time.monotonic)
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
) -> Path:
    """Downloads what a run released for an agent, or the submodel of that name, and returns its
    folder, `directory`/RUN/VERSION.

    The folder holds the manifest, the check and the files of that one submodel. run: None where the
    broker has releases of one run only. timeout: seconds in all. Files that are there already with
    the right digest are not downloaded again.
    Raises FleetError when there is no such release, or several runs to choose from, or it did not
    arrive in time; ExportError for a file that is not what its card says; StoreError where there is
    no room.
    """
    return _fetched(link, run, wanted, directory, timeout, clock)[0]


def card_of(delivery: Delivery) -> Release | None:
    """The card that a delivery brings, if it brings one of the run that its topic says."""
    place = topics.parse(delivery.topic)
    if place is None or place.kind != "card" or not delivery.payload:
        return None
    try:
        message = envelope.decode(delivery.payload)
    except WireError as error:
        log.warning("ignored the releases on %s: %s", delivery.topic, error)
        return None
    return message if isinstance(message, Release) and message.run == place.run else None


def choose(cards: dict[str, Release], wanted: str, submodel: str | None = None) -> Release | None:
    """The card of the only run that released something for `wanted`. Raises FleetError where there
    are several.
    """
    found = [run for run, card in cards.items() if target(card, wanted, submodel) is not None]
    if len(found) > 1:
        raise FleetError(
            f"several runs released a network for '{submodel or wanted}': "
            f"{', '.join(sorted(found))}; choose one with --run"
        )
    return cards[found[0]] if found else None


def _fetched(
    link: Link, run: str | None, wanted: str, directory: Path, timeout: float, clock: Clock
) -> tuple[Path, str]:
    until = clock() + timeout
    pattern = topics.release_card(run or "+")
    link.subscribe(pattern)
    arriving = None
    try:
        card = _find(link, run, wanted, until, clock)
        while True:
            version, submodel = _meant(card, wanted)
            arriving = Arriving(
                link,
                card.run,
                version,
                submodel,
                folder_of(directory, card.run, version.name),
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


def _find(link: Link, run: str | None, wanted: str, until: float, clock: Clock) -> Release:
    """The card that is wanted. One run's own is taken as soon as it comes; with a run to be
    guessed, all cards are waited for.
    """
    cards: dict[str, Release] = {}
    quiet = until
    while (now := clock()) < quiet:
        delivery = link.receive(max(0.0, min(0.2, quiet - now)))
        card = None if delivery is None else card_of(delivery)
        if card is not None:
            cards[card.run] = card
            quiet = min(until, clock() + SETTLE)
            if run is not None and target(card, wanted) is not None:
                return card
    found = choose(cards, wanted)
    if found is not None:
        return found
    of = f" of run '{run}'" if run else ""
    if not cards:
        raise FleetError(f"no release{of} at this broker: publish one by `coordinator release`")
    raise FleetError(
        f"nothing was released for '{wanted}'{of}: neither an agent nor a submodel of "
        f"that name; {_told(cards)} (--submodel)"
    )


def _told(cards: dict[str, Release]) -> str:
    stable = [(run, card.stable) for run, card in sorted(cards.items()) if card.stable is not None]
    names = [
        f"{run}/{marked(name, untrained=name in version.untrained)}"
        for run, version in stable
        for name in version.submodels
    ]
    return f"released: {', '.join(names) or 'nothing to all agents, a canary to some'}"


def _meant(card: Release, wanted: str) -> tuple[Version, str]:
    found = target(card, wanted)
    if found is None:
        raise FleetError(
            f"run '{card.run}' withdrew what it had released for '{wanted}'; "
            f"{_told({card.run: card})}"
        )
    return found


def _follow(
    link: Link, arriving: Arriving, card: Release, wanted: str, until: float, clock: Clock
) -> Release | None:
    """Until all is there: None; or a card that means another version by now. Raises FleetError when
    time is up.
    """
    while not arriving.whole:
        if clock() >= until:
            name = f"{card.run}/{arriving.submodel}"
            raise FleetError(
                f"release {name} (version {arriving.version.name}) did not arrive in "
                "time: wait longer (--wait), or publish it again"
            )
        delivery = link.receive(max(0.0, min(0.2, until - clock())))
        arriving.tick(clock())
        if delivery is None or arriving.hear(delivery, clock()):
            continue
        newer = card_of(delivery)
        if (
            newer is not None
            and newer.run == card.run
            and _meant(newer, wanted)[0].name != arriving.version.name
        ):
            return newer
    return None
