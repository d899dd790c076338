"""What an agent that answers remembers over restarts: which release is in use, which were before,
which one is being tested. No torch here.

What was measured of a release lies apart, in this device's cache
(`edge_agent.device.measurement_cache`), beside all that it depends on: other versions of the
runtime, another board with the same card in it, or other processors measure their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from edge_agent.device.limits import Limits
from edge_agent.device.measurement_cache import folder, surroundings
from edge_agent.infer.graph_choice import Choice, providers
from edge_agent.infer.trial import Held
from federated.errors import ExportError, StoreError
from federated.runtime import files

__all__ = ["Place", "Remembered", "known", "note", "places", "remember", "trying", "untried"]

log = logging.getLogger(__name__)

CURRENT = "current.json"
TRYING = "trying.json"
GOOD = (
    2  # releases that were in use before, as many as `edge_agent.infer.follow` leaves in the store
)
ATTEMPTS = 2  # tests of a release that a process may die in: the first may have been a power cut

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Place:
    """Where a release lies, from the folder that remembers it."""

    version: str
    folder: str
    submodel: str


@dataclass(frozen=True)
class Remembered:
    """current: what is in use; good: what was before, the latest first."""

    current: Place
    good: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Trying:
    """A release that is being tested, for the how-manieth time."""

    version: str
    attempts: int


def places(store: Path) -> tuple[Place, ...]:
    """What is in use, and what was before; nothing where nothing was."""
    found = _read(store / CURRENT, Remembered)
    return () if found is None else (found.current, *found.good)


def remember(store: Path, release: Path, submodel: str, version: str) -> None:
    """From now on, a restart begins with this release. Raises StoreError; never for what a restart
    begins with already.
    """
    # the whole store may be moved
    place, before = (
        Place(version, os.path.relpath(release.resolve(), store.resolve()), submodel),
        places(store),
    )
    if before[:1] != (place,):
        _write(
            store / CURRENT, Remembered(place, tuple(old for old in before if old != place)[:GOOD])
        )


@contextlib.contextmanager
def trying(store: Path, version: str) -> Iterator[None]:
    """A test of a release: one that processes died of is not tested again. Raises ExportError for
    it. A full disk does not keep it from a test.
    """
    path = store / TRYING
    before = _read(path, Trying)
    attempts = before.attempts if before is not None and before.version == version else 0
    if attempts >= ATTEMPTS:
        raise ExportError(
            f"version {version}: the process ended {attempts} times while it was "
            f"tested; remove {path} to try again"
        )
    try:
        _write(path, Trying(version, attempts + 1))
    except StoreError as error:
        log.warning("version %s is tested without a note of it: %s", version, error)
    try:
        yield
    finally:
        untried(store)


def untried(store: Path) -> None:
    """Says that an orderly end, and not the release, interrupts a test that is going on."""
    with contextlib.suppress(OSError):
        (store / TRYING).unlink(missing_ok=True)


def known(version: str, submodel: str, threads: int, held: Held | None) -> Choice | None:
    """What was chosen of a release under the same circumstances."""
    return _read(_measured(version, submodel, threads, held), Choice)


def note(choice: Choice, threads: int, held: Held | None) -> None:
    """Keeps a choice, if that is possible."""
    try:
        _write(_measured(choice.version, choice.submodel, threads, held), choice)
    except StoreError as error:
        log.warning("what was measured of version %s is not kept: %s", choice.version, error)


def _measured(version: str, submodel: str, threads: int, held: Held | None) -> Path:
    digest = hashlib.sha256()
    for part in held or ():
        digest.update(np.ascontiguousarray(part).tobytes())
    facts = {
        "submodel": submodel,
        "threads": threads,
        "providers": providers(),
        "held": digest.hexdigest(),
        **surroundings(Limits(), ""),
    }
    known = hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()
    return folder() / "choices" / f"{version}-{known[:16]}.json"


def _read(path: Path, kind: type[Kind]) -> Kind | None:
    """What a file holds; None where there is none, or a damaged one: it is written anew."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # msgspec's and text's are ValueErrors
        log.warning("%s is passed over: %s", path, error)
        return None


def _write(path: Path, value: object) -> None:
    """Raises StoreError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, msgspec.json.encode(value))
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror or error}") from error
