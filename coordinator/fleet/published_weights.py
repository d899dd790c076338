"""Keep on the broker the weights that agents download, or where they download them over HTTP. Each
submodel of a version is published once, for all agents that use it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coordinator.http_transfers.transfer_urls import Transfers
from federated.errors import StoreError
from federated.system.file_mapping import map_file
from federated.wire import envelope, topics
from federated.wire.chunks import split
from federated.wire.link import Link
from federated.wire.messages import Manifest
from federated.wire.retained_blobs import publish, withdraw

__all__ = ["FIRST", "REPEAT", "PublishedWeights", "WeightSlots"]

# seconds until an address of weights is published again: the first pause, which doubles up to the
# last one
FIRST, REPEAT = 0.5, 5.0


@dataclass(frozen=True)
class PublishedWeights:
    """The published weights of a submodel.

    version: of the weights.
    slot: topic level that they are published at.
    manifest: their size, sha256, and chunks or address.
    path: their file, to publish them again, or to serve over HTTP.
    over_http: whether they travel over HTTP; the manifest has no address, and is not published,
        until they can be downloaded there.
    """

    version: str
    slot: str
    manifest: Manifest
    path: Path
    over_http: bool

    @property
    def waiting(self) -> bool:
        return self.over_http and not self.manifest.url


class WeightSlots:
    """The weights that the broker retains for a run.

    folder: for their files.
    chunk: size of a chunk in bytes; 0: what the link allows.
    urls: where agents download over HTTP; None: everything is published in chunks.
    served_bytes: of what was published for downloads over HTTP, each once.
    """

    def __init__(
        self,
        link: Link,
        run: str,
        folder: Path,
        chunk: int = 0,
        urls: Transfers | None = None,
    ) -> None:
        self.link, self.run, self.folder, self.chunk, self.urls = link, run, folder, chunk, urls
        self.served_bytes = 0
        self._items: dict[tuple[str, str], PublishedWeights] = {}  # by version and submodel
        self._unsent: dict[tuple[str, str], None] = {}  # those without chunks at the broker
        # by version and submodel: when an address is published again, and the pause after that
        self._due: dict[tuple[str, str], tuple[float, float]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.weights"):
            path.unlink()  # of a coordinator that crashed

    def put(
        self, version: str, submodel: str, pieces: Sequence[bytes | memoryview], slot: str
    ) -> PublishedWeights:
        """Publish the manifest of encoded weights unless they are published already. The chunks
        follow with `send`, so that agents can download the first while the last are published.

        pieces: the weights in order.
        slot: where to publish, unless another version is there. It is the same for a version in
            every process, so that a coordinator that resumes a round overwrites the weights of the
            last one, and agents find them.
        Raises StoreError if the disk is full.
        """
        item = self._items.get((version, submodel))
        if item is None:
            name = f"{version}-{submodel}".replace("@", "_")
            path = self.folder / f"{name}.weights"
            self._write(path, pieces)
            # Windows moves no mapped file
            manifest = split(
                map_file(path), min(self.chunk or self.link.max_chunk, self.link.max_chunk), name
            )
            path = path.replace(self.folder / f"{manifest.sha256}.weights")
            over_http = self.urls is not None and manifest.size > self.urls.above
            free = self._find_free(version, slot)
            item = PublishedWeights(version, free, manifest, path, over_http)
            self._items[version, submodel] = item
            if over_http:
                self.served_bytes += manifest.size
                self._announce((version, submodel))
            else:
                self._unsent[version, submodel] = None
                self._publish_manifest((version, submodel))
        return item

    def _announce(self, key: tuple[str, str], *, again: bool = False) -> None:
        """Publish the address of weights if it is another one now, or `again` if it is known."""
        item = self._items[key]
        assert self.urls is not None
        url = self.urls.find_weights(item.manifest.sha256)
        if url and url != item.manifest.url:
            self._items[key] = replace(item, manifest=replace(item.manifest, url=url))
            self._publish_manifest(key)
        elif again and not item.waiting:
            self._publish_manifest(key)

    def _publish_manifest(self, key: tuple[str, str]) -> None:
        item = self._items[key]
        base = topics.model(self.run, item.slot, key[1])
        self.link.publish(topics.manifest(base), envelope.encode(item.manifest), retain=True)

    def send(self, now: float) -> None:
        """Publish the chunks of weights whose tasks were sent, and new addresses of weights.

        Known addresses are published again and again: in a cluster whose nodes do not share
        retained messages, agents at other nodes get only what is published after they subscribe.
        """
        for key in [key for key, item in self._items.items() if item.over_http]:
            due, pause = self._due.setdefault(key, (now + FIRST, 2 * FIRST))
            if again := now >= due:
                self._due[key] = now + pause, min(2 * pause, REPEAT)
            self._announce(key, again=again)
        while self._unsent:
            key = next(iter(self._unsent))
            del self._unsent[key]
            self._publish(key)

    def _publish(self, key: tuple[str, str]) -> None:
        item = self._items[key]
        if not item.waiting:
            base = topics.model(self.run, item.slot, key[1])
            publish(self.link, base, item.manifest, map_file(item.path))

    def _find_free(self, version: str, slot: str) -> str:
        """Return the slot, or the next one that no other version uses: a straggler's version may
        stay for many rounds.
        """
        taken = {item.slot for item in self._items.values() if item.version != version}
        others = (f"{slot}.{number}" for number in range(1, len(taken) + 1))
        return slot if slot not in taken else next(other for other in others if other not in taken)

    def _write(self, path: Path, pieces: Sequence[bytes | memoryview]) -> None:
        """Write weights to a file. Raises StoreError if the disk is full, and then leaves no
        partial file.
        """
        try:
            with path.open("wb") as file:
                file.writelines(pieces)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise StoreError(
                f"cannot write weights of {sum(map(len, pieces))} bytes to {self.folder}: "
                f"{error.strerror}"
            ) from error

    def republish(self) -> None:
        """Publish everything again, for a broker that may have lost it."""
        self._unsent.clear()
        for key in self._items:
            self._publish(key)

    def clear(self, keep: Collection[str] = ()) -> None:
        """Withdraw every version except these."""
        for (version, submodel), item in list(self._items.items()):
            if version not in keep:
                if not item.waiting:
                    withdraw(self.link, topics.model(self.run, item.slot, submodel), item.manifest)
                self._unsent.pop((version, submodel), None)
                self._due.pop((version, submodel), None)
                self._remove_file(item)
                del self._items[version, submodel]

    def remove_files(self) -> None:
        """Remove the files without a message to a broker that cannot be reached."""
        for item in self._items.values():
            self._remove_file(item)
        self._items.clear()
        self._unsent.clear()
        self._due.clear()

    def _remove_file(self, item: PublishedWeights) -> None:
        item.path.unlink(missing_ok=True)
        if item.over_http and self.urls is not None:
            self.urls.withdraw(item.manifest.sha256)
