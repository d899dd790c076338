"""Releases on a broker: the files of each version as retained chunks, and a retained card that says
which version is for whom. No torch here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from export import bundle
from federated.errors import ExportError, LinkError, WireError
from federated.wire import envelope, messages, topics, transfer
from federated.wire.chunks import split
from federated.wire.delivery_queue import Delivery
from federated.wire.link import Link
from federated.wire.release_files import Release, Serving, Version

__all__ = [
    "SETTLE",
    "Published",
    "announce",
    "confirm",
    "publish",
    "published",
    "version_of",
    "withdraw",
]

SETTLE = 1.0  # seconds of silence after which a broker has shown all that it retains
# seconds for a broker to show what was published: a busy one may stop for some, to write to its
# disk say
PATIENCE = 60.0


@dataclass
class Published:
    """What a broker retains of a run's releases: its card, manifests by version and file, and what
    agents answer with.
    """

    card: Release | None = None
    manifests: dict[tuple[str, str], messages.Manifest] = field(default_factory=dict)
    servings: dict[str, Serving] = field(default_factory=dict)

    def hear(self, delivery: Delivery) -> None:
        """Takes a delivery in; of what is withdrawn, forgets it. Anything else is passed over."""
        place = topics.parse(delivery.topic)
        if place is None or place.kind not in ("card", "manifest", "release"):
            return
        try:
            message = envelope.decode(delivery.payload) if delivery.payload else None
        except WireError:
            return
        if place.kind == "card" and isinstance(message, Release | None):
            self.card = message
        elif isinstance(message, messages.Manifest):
            self.manifests[place.version, place.file] = message
        elif isinstance(message, Serving) and message.agent == place.agent:
            self.servings[message.agent] = message
        elif message is None:
            self.manifests.pop((place.version, place.file), None)
            self.servings.pop(str(place.agent), None)


def version_of(folder: Path, run: str, assignment: Mapping[str, str]) -> Version:
    """What a card says of a release folder, all of which is checked first. assignment: agent ->
    name of its submodel.

    Raises ExportError for a folder that is no whole release of this run.
    """
    found = bundle.read(folder)
    if found.run != run:
        raise ExportError(
            f"{folder}: expected a release of run '{run}', found one of '{found.run}'"
        )
    data = (folder / bundle.MANIFEST).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    submodels = tuple(entry.submodel for entry in found.submodels)
    served = {agent: submodel for agent, submodel in assignment.items() if submodel in submodels}
    untrained = tuple(entry.submodel for entry in found.submodels if entry.trained_updates == 0)
    return Version(digest[:12], found.round, digest, len(data), submodels, served, untrained)


def published(link: Link, run: str, clock: Callable[[], float]) -> Published:
    """What the broker retains of a run's releases; the link hears of changes from now on. Raises
    LinkError.
    """
    found = Published()
    for pattern in (
        topics.release_card(run),
        topics.release_manifests(run),
        topics.serving(run, "+"),
    ):
        link.subscribe(pattern)
    quiet = clock() + SETTLE
    while (now := clock()) < quiet:
        delivery = link.receive(quiet - now)
        if delivery is not None:
            found.hear(delivery)
            quiet = clock() + SETTLE
    return found


def publish(
    link: Link, run: str, folder: Path, there: Mapping[tuple[str, str], messages.Manifest]
) -> dict[tuple[str, str], messages.Manifest]:
    """Publishes the files of a release; those that are `there` already are left alone. What it
    published.

    Raises ExportError for files that are not what the manifest says, LinkError.
    """
    version, sent = bundle.version(folder), {}
    for file in (*bundle.files(bundle.manifest(folder)), bundle.file_of(folder / bundle.MANIFEST)):
        known = there.get((version, file.name))
        if known is not None and known.sha256 == file.sha256:
            continue
        data = memoryview((folder / file.name).read_bytes())
        manifest = split(data, link.max_chunk, f"release-{file.sha256[:16]}")
        if manifest.sha256 != file.sha256:
            raise ExportError(
                f"{folder / file.name}: expected sha256 {file.sha256}, found {manifest.sha256}"
            )
        transfer.publish(link, topics.release(run, version, file.name), manifest, data)
        sent[version, file.name] = manifest
    return sent


def announce(link: Link, card: Release) -> None:
    """Publishes the card, of versions whose files are there: who sees it can have the rest. Raises
    LinkError.
    """
    link.publish(topics.release_card(card.run), envelope.encode(card), retain=True)


def confirm(link: Link, found: Published, card: Release, clock: Callable[[], float]) -> None:
    """Returns once the broker shows a card that was announced, and so has all that was published
    before it: a link that is closed earlier leaves out what a broker did not take within a few
    seconds. found: what the link hears, without a card until then. Raises LinkError.
    """
    until = clock() + PATIENCE
    while found.card != card:
        if clock() >= until:
            again = f"coordinator release {card.run} publishes it again"
            raise LinkError(
                f"the broker does not show what is released within {PATIENCE:.0f} s, so "
                f"agents may not hear of it: {again}"
            )
        delivery = link.receive(0.2)
        if delivery is not None:
            found.hear(delivery)


def withdraw(
    link: Link, run: str, keep: Collection[str], there: Mapping[tuple[str, str], messages.Manifest]
) -> None:
    """Clears the files of all versions but these. Raises LinkError."""
    for (version, file), manifest in there.items():
        if version not in keep:
            transfer.withdraw(link, topics.release(run, version, file), manifest)
