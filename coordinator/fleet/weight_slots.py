"""The weights that are retained on the broker for the agents: each submodel of a version is
published once, for all agents that use it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from federated.errors import StoreError
from federated.wire import topics
from federated.wire.chunks import split
from federated.wire.link import Link
from federated.wire.messages import Manifest
from federated.wire.transfer import publish, withdraw

__all__ = ["Shelf"]


@dataclass(frozen=True)
class Item:
    """One published blob. path: a copy, to publish it again."""

    version: str
    slot: str
    manifest: Manifest
    path: Path


class Shelf:
    """What is retained on the broker for a run. folder: where copies lie. chunk: bytes of a chunk;
    0: what the link lets through.
    """

    def __init__(self, link: Link, run: str, folder: Path, chunk: int = 0) -> None:
        self.link, self.run, self.folder, self.chunk = link, run, folder, chunk
        self._items: dict[tuple[str, str], Item] = {}  # by version and submodel
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.weights"):
            path.unlink()  # of a coordinator that died

    def put(self, version: str, submodel: str, data: memoryview, slot: str) -> tuple[str, str, int]:
        """Publish encoded weights, unless they are published already; their slot, sha256 and size,
        for tasks.

        slot: where to, unless another version is there now. The same for a version in every
        process, so that a coordinator that resumes a round overwrites what the last one left, and
        agents find it where they look. Raises StoreError where the disk is full.
        """
        item = self._items.get((version, submodel))
        if item is None:
            name = f"{version}-{submodel}".replace("@", "_")
            manifest = split(
                data, min(self.chunk or self.link.max_chunk, self.link.max_chunk), name
            )
            path = self.folder / f"{name}.weights"
            self._copy(path, data)
            item = self._items[version, submodel] = Item(
                version, self._free(version, slot), manifest, path
            )
            publish(self.link, topics.model(self.run, item.slot, submodel), manifest, data)
        return item.slot, item.manifest.sha256, item.manifest.size

    def _free(self, version: str, slot: str) -> str:
        """The slot, or the next one after it in which no other version is: that of a straggler may
        stay for many rounds.
        """
        taken = {item.slot for item in self._items.values() if item.version != version}
        others = (f"{slot}.{number}" for number in range(1, len(taken) + 1))
        return slot if slot not in taken else next(other for other in others if other not in taken)

    def _copy(self, path: Path, data: memoryview) -> None:
        """Keeps what is about to be published. Raises StoreError where the disk does not take it,
        and leaves nothing of it.
        """
        try:
            path.write_bytes(data)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise StoreError(
                f"weights of {len(data)} bytes could not be written to {self.folder}: "
                f"{error.strerror}"
            ) from error

    def restock(self) -> None:
        """Publish everything again, for a broker that may have lost it."""
        for (_, submodel), item in self._items.items():
            publish(
                self.link,
                topics.model(self.run, item.slot, submodel),
                item.manifest,
                memoryview(item.path.read_bytes()),
            )

    def clear(self, keep: Collection[str] = ()) -> None:
        """Withdraw every version but these."""
        for (version, submodel), item in list(self._items.items()):
            if version not in keep:
                withdraw(self.link, topics.model(self.run, item.slot, submodel), item.manifest)
                item.path.unlink(missing_ok=True)
                del self._items[version, submodel]
