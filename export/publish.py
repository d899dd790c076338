"""A release on a broker: each file as retained chunks, and a retained card that says what it is and whose submodel it was. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from export import bundle
from export.bundle import Bundle, Entry
from federated.errors import ExportError
from federated.wire import messages, topics, transfer
from federated.wire.chunks import split
from federated.wire.link import Link

__all__ = ["publish", "withdraw"]


def publish(link: Link, run: str, folder: Path, assignment: Mapping[str, str] | None = None) -> Bundle:
    """Publishes a release, checked first; what a run published before under the same submodels is replaced.

    assignment: agent -> name of its submodel in the run, so that an agent finds its own. Returns what was published.
    Raises ExportError for a folder that is no whole release of this run, LinkError.
    """
    found = bundle.read(folder)
    for entry, data in _files(found, run, folder):
        manifest = _manifest(link, entry, data)
        transfer.publish(link, topics.release(run, entry.submodel), manifest, memoryview(data))
        card = messages.Release(run, found.round, entry.submodel, manifest, dict(assignment or {}))
        link.publish(topics.release_card(run, entry.submodel), messages.encode(card), retain=True)  # last: who sees it can have the rest
    return found


def withdraw(link: Link, run: str, folder: Path) -> None:
    """Clears what `publish` retained of this folder over a link like this one. Raises ExportError, LinkError."""
    for entry, data in _files(bundle.read(folder), run, folder):
        link.publish(topics.release_card(run, entry.submodel), b"", retain=True)
        transfer.withdraw(link, topics.release(run, entry.submodel), _manifest(link, entry, data))


def _files(found: Bundle, run: str, folder: Path) -> Iterator[tuple[Entry, bytes]]:
    if found.run != run:
        raise ExportError(f"{folder}: expected a release of run '{run}', found one of '{found.run}'")
    for entry in found.submodels:
        yield entry, (folder / entry.file).read_bytes()


def _manifest(link: Link, entry: Entry, data: bytes) -> messages.Manifest:
    """The transfer is named by its content, so that chunks of an older release are told apart from those of this one."""
    return split(memoryview(data), link.max_chunk, f"release-{entry.sha256[:16]}")
