"""Publish releases on a broker: their files as retained chunks, and one retained message (the
card) that assigns a version to each agent. Does not import torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, Protocol, TypeVar

from export import release_reader
from federated.errors import EspalierError, ExportError, LinkError, WireError
from federated.http_transfers.http_client import HttpAccess
from federated.http_transfers.http_download import HttpDownload
from federated.wire import envelope, messages, retained_blobs, topics
from federated.wire.chunks import split
from federated.wire.link import Delivery, Link
from federated.wire.release_messages import Release, Serving, SoftwareCard, Version

__all__ = [
    "SETTLE",
    "PublishedReleases",
    "announce",
    "confirm",
    "describe_version",
    "publish",
    "read_published",
    "withdraw",
]

SETTLE = 1.0  # seconds of silence after which all retained messages have arrived
# seconds to wait for the broker to deliver what was published; a busy broker may pause, for example
# to write to disk
PATIENCE = 60.0
CardType = TypeVar("CardType", Release, SoftwareCard)


@dataclass
class PublishedReleases:
    """Retained messages of a run's releases.

    card: the release card, if any
    manifests: manifests by (version, file)
    servings: serving reports by agent
    """

    card: Release | None = None
    manifests: dict[tuple[str, str], messages.Manifest] = field(default_factory=dict)
    servings: dict[str, Serving] = field(default_factory=dict)

    def hear(self, delivery: Delivery) -> None:
        """Record a delivery; a withdrawn message is removed, anything else is ignored."""
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


def describe_version(folder: Path, run: str, assignment: Mapping[str, str]) -> Version:
    """Check a release folder and return its version record for the card.

    assignment: name of the submodel of each agent
    ExportError: the folder is not a complete release of this run.
    """
    found = release_reader.read(folder)
    if found.run != run:
        raise ExportError(
            f"{folder}: expected a release of run '{run}', found one of '{found.run}'"
        )
    data = (folder / release_reader.MANIFEST).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    submodels = tuple(entry.submodel for entry in found.submodels)
    served = {agent: submodel for agent, submodel in assignment.items() if submodel in submodels}
    untrained = tuple(entry.submodel for entry in found.submodels if entry.trained_updates == 0)
    return Version(digest[:12], found.round, digest, len(data), submodels, served, untrained)


def read_published(link: Link, run: str, clock: Callable[[], float]) -> PublishedReleases:
    """Return the retained messages of a run's releases, and keep the link subscribed to changes.
    Raises LinkError.
    """
    found = PublishedReleases()
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
    link: Link,
    run: str,
    folder: Path,
    present: Mapping[tuple[str, str], messages.Manifest],
    served_at: str = "",
) -> dict[tuple[str, str], messages.Manifest]:
    """Publish the files of a release except those already published (`present`), and return the
    manifests of the new ones.

    served_at: address of a folder in which a web server has the files already, so that only their
        manifests are published, with these addresses. They are downloaded to check them.
    ExportError: a file does not match the manifest. Also raises LinkError.
    """
    version, sent = release_reader.read_version(folder), {}
    for file in (
        *release_reader.list_files(release_reader.read_manifest(folder)),
        release_reader.describe_file(folder / release_reader.MANIFEST),
    ):
        known = present.get((version, file.name))
        url = f"{served_at.rstrip('/')}/{file.name}" if served_at else ""
        if known is not None and known.sha256 == file.sha256 and url in ("", known.url):
            continue
        data = memoryview((folder / file.name).read_bytes())
        manifest = split(data, link.max_chunk, f"release-{file.sha256[:16]}")
        if manifest.sha256 != file.sha256:
            raise ExportError(
                f"{folder / file.name}: expected sha256 {file.sha256}, found {manifest.sha256}"
            )
        base = topics.release(run, version, file.name)
        if url:
            check_served(url, file)
            manifest = replace(manifest, url=url)
            if known is not None:
                retained_blobs.withdraw(link, base, known)  # its chunks
        retained_blobs.publish(link, base, manifest, data)
        sent[version, file.name] = manifest
    return sent


def check_served(url: str, file: release_reader.File) -> None:
    """Download a file of a release to check it. Raises ExportError."""
    with TemporaryDirectory(prefix="espalier-") as folder:
        try:
            download = HttpDownload(
                HttpAccess(), url, Path(folder) / file.name, file.sha256, file.size
            )
            try:
                download.transfer_once()
            finally:
                download.stop()
        except (EspalierError, OSError, HTTPException) as error:
            raise ExportError(
                f"--files-at: {url} does not serve the file of this release: "
                f"{str(error) or type(error).__name__}; upload the bundle's files there first"
            ) from error


class Published(Protocol[CardType]):
    """What was received of the retained messages of a run.

    card: the last card of this kind, if any
    """

    card: CardType | None

    def hear(self, delivery: Delivery) -> None:
        """Record a delivery."""


def announce(link: Link, card: Release | SoftwareCard) -> None:
    """Publish a card. All files of its versions must be published first, so that every reader
    can download them. Raises LinkError.
    """
    kind: Literal["card", "software"] = "card" if isinstance(card, Release) else "software"
    link.publish(topics.release_card(card.run, kind), envelope.encode(card), retain=True)


def confirm(
    link: Link, found: Published[CardType], card: CardType, clock: Callable[[], float]
) -> None:
    """Wait until the broker delivers the announced card, which proves that it has everything
    published before it: closing a link earlier drops what a broker did not accept within a
    few seconds.

    found: messages received over the link, without the card so far
    LinkError: the broker does not deliver it in time.
    """
    until, command = clock() + PATIENCE, "release" if isinstance(card, Release) else "upgrade"
    while found.card != card:
        if clock() >= until:
            raise LinkError(
                f"the broker did not confirm the release within {PATIENCE:.0f} s, so agents may "
                f"not receive it; publish it again with: coordinator {command} {card.run} "
                "--broker HOST"
            )
        delivery = link.receive(0.2)
        if delivery is not None:
            found.hear(delivery)


def withdraw(
    link: Link,
    run: str,
    keep: Collection[str],
    present: Mapping[tuple[str, str], messages.Manifest],
) -> None:
    """Clear the files of all versions except `keep`. Raises LinkError."""
    for (version, file), manifest in present.items():
        if version not in keep:
            retained_blobs.withdraw(link, topics.release(run, version, file), manifest)
