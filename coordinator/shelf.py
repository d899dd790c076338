"""The weights that a broker holds for the agents: each submodel of a version published once, for all who share it."""

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
    """One blob on the shelf; its bytes lie in `path`, to be published again."""

    version: str
    manifest: Manifest
    path: Path


class Shelf:
    """What is retained on the broker for a run. folder: where copies lie. chunk: bytes of a chunk; 0: what the link lets through."""

    def __init__(self, link: Link, run: str, folder: Path, chunk: int = 0) -> None:
        self.link, self.run, self.folder, self.chunk = link, run, folder, chunk
        self._items: dict[str, Item] = {}  # by base topic
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.weights"):
            path.unlink()  # of a coordinator that died

    def put(self, version: str, submodel: str, data: memoryview) -> tuple[str, int]:
        """Publishes encoded weights, unless they are there; their sha256 and size, for tasks to name. Raises StoreError where the disk is full."""
        base = topics.model(self.run, version, submodel)
        if base not in self._items:
            name = f"{version}-{submodel}".replace("@", "_")
            manifest = split(data, min(self.chunk or self.link.max_chunk, self.link.max_chunk), name)
            path = self.folder / f"{name}.weights"
            self._copy(path, data)
            publish(self.link, base, manifest, data)
            self._items[base] = Item(version, manifest, path)
        manifest = self._items[base].manifest
        return manifest.sha256, manifest.size

    def _copy(self, path: Path, data: memoryview) -> None:
        """Keeps what is about to be published. Raises StoreError where the disk does not take it, and leaves nothing of it."""
        try:
            path.write_bytes(data)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise StoreError(f"weights of {len(data)} bytes could not be written to {self.folder}: {error.strerror}") from error

    def restock(self) -> None:
        """Publishes everything again, for a broker that may have lost it."""
        for base, item in self._items.items():
            publish(self.link, base, item.manifest, memoryview(item.path.read_bytes()))

    def clear(self, keep: Collection[str] = ()) -> None:
        """Takes away every version but these."""
        for base, item in list(self._items.items()):
            if item.version not in keep:
                withdraw(self.link, base, item.manifest)
                item.path.unlink(missing_ok=True)
                del self._items[base]
