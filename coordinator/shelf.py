"""The weights that a broker holds for the agents: each submodel of a version published once, for all who share it."""

from __future__ import annotations

from federated.wire import topics
from federated.wire.chunks import split
from federated.wire.link import Link
from federated.wire.messages import Manifest
from federated.wire.transfer import publish, withdraw

__all__ = ["Shelf"]


class Shelf:
    """What is retained on the broker for a run. chunk: bytes of a chunk; 0: what the link lets through."""

    def __init__(self, link: Link, run: str, chunk: int = 0) -> None:
        self.link, self.run, self.chunk = link, run, chunk
        self._published: dict[str, tuple[Manifest, str]] = {}  # base topic -> what lies there, and its version

    def put(self, version: str, submodel: str, data: memoryview) -> tuple[str, int]:
        """Publishes encoded weights, unless they are there; their sha256 and size, for tasks to name."""
        base = topics.model(self.run, version, submodel)
        if base not in self._published:
            manifest = split(data, min(self.chunk or self.link.max_chunk, self.link.max_chunk), f"{version}-{submodel}".replace("@", "_"))
            publish(self.link, base, manifest, data)
            self._published[base] = manifest, version
        manifest, _ = self._published[base]
        return manifest.sha256, manifest.size

    def clear(self, keep: str = "") -> None:
        """Takes away every version but `keep`."""
        for base, (manifest, version) in list(self._published.items()):
            if version != keep:
                withdraw(self.link, base, manifest)
                del self._published[base]
