"""Store which releases a serving agent uses: the present one, earlier ones, and one under test.
Does not import torch.

Measurements of a release are stored separately, in the device's cache
(`edge_agent.device.measurement_cache`) with everything they depend on: with other versions of the
runtime, on another board with the same memory card, or on other processors, the device measures
again.
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

from edge_agent.device.measurement_cache import describe_surroundings, locate_cache
from edge_agent.device.process_limits import Limits
from edge_agent.infer.graph_choice import Choice, list_providers
from edge_agent.infer.graph_trial import Held
from federated.errors import ExportError, StoreError, explain_os_errors
from federated.runtime import atomic_files

__all__ = [
    "clear_trial",
    "guard_trial",
    "load_choice",
    "load_places",
    "save_choice",
    "save_release",
]

log = logging.getLogger(__name__)

CURRENT = "current.json"
TRYING = "trying.json"
MAX_EARLIER = (
    2  # earlier releases, as many as `edge_agent.releases.release_follower` keeps in the store
)
ATTEMPTS = 2  # crashes allowed during the tests of a release: the first may be a power cut

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class ReleasePlace:
    """Location of a release.

    version: version of the release
    folder: its folder, relative to the folder of this file
    submodel: submodel in use
    """

    version: str
    folder: str
    submodel: str


@dataclass(frozen=True)
class ReleaseState:
    """The releases of a serving agent.

    current: release in use
    good: earlier releases, the latest first
    """

    current: ReleasePlace
    good: tuple[ReleasePlace, ...] = ()


@dataclass(frozen=True)
class TrialAttempts:
    """A release under test.

    version: version of the release
    attempts: number of tests started
    """

    version: str
    attempts: int


def load_places(store: Path) -> tuple[ReleasePlace, ...]:
    """Return the release in use and the earlier ones, or nothing."""
    found = _read(store / CURRENT, ReleaseState)
    return () if found is None else (found.current, *found.good)


def save_release(store: Path, release: Path, submodel: str, version: str) -> None:
    """Make restarts begin with this release, unless they already do. StoreError: the file cannot
    be written.
    """
    # a relative path, since the whole store may be moved
    place, before = (
        ReleasePlace(version, os.path.relpath(release.resolve(), store.resolve()), submodel),
        load_places(store),
    )
    if before[:1] != (place,):
        _write(
            store / CURRENT,
            ReleaseState(place, tuple(old for old in before if old != place)[:MAX_EARLIER]),
        )


@contextlib.contextmanager
def guard_trial(store: Path, version: str) -> Iterator[None]:
    """Record the test of a release for the duration of the context, so that a release that
    crashes the process is not tested forever.

    A full disk does not prevent the test.

    ExportError: the process has already crashed in earlier tests of this version.
    """
    path = store / TRYING
    before = _read(path, TrialAttempts)
    attempts = before.attempts if before is not None and before.version == version else 0
    if attempts >= ATTEMPTS:
        raise ExportError(
            f"version {version}: the process crashed {attempts} times during its test; "
            f"remove {path} to try again"
        )
    try:
        _write(path, TrialAttempts(version, attempts + 1))
    except StoreError as error:
        log.warning("cannot record the test of version %s: %s", version, error)
    try:
        yield
    finally:
        clear_trial(store)


def clear_trial(store: Path) -> None:
    """Remove the record of a test, so that an orderly shutdown during a test does not count as a
    crash.
    """
    with contextlib.suppress(OSError):
        (store / TRYING).unlink(missing_ok=True)


def load_choice(version: str, submodel: str, threads: int, held: Held | None) -> Choice | None:
    """Return the earlier choice for a release under the same circumstances, if any."""
    return _read(_locate_choice(version, submodel, threads, held), Choice)


def save_choice(choice: Choice, threads: int, held: Held | None) -> None:
    """Save a choice if possible."""
    try:
        _write(_locate_choice(choice.version, choice.submodel, threads, held), choice)
    except StoreError as error:
        log.warning("cannot save the measurements of version %s: %s", choice.version, error)


def _locate_choice(version: str, submodel: str, threads: int, held: Held | None) -> Path:
    digest = hashlib.sha256()
    for part in held or ():
        digest.update(np.ascontiguousarray(part).tobytes())
    facts = {
        "submodel": submodel,
        "threads": threads,
        "providers": list_providers(),
        "held": digest.hexdigest(),
        **describe_surroundings(Limits(), ""),
    }
    known = hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()
    return locate_cache() / "choices" / f"{version}-{known[:16]}.json"


def _read(path: Path, kind: type[Kind]) -> Kind | None:
    """Return a file's content, or None if it is missing or damaged; it is then written again."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # msgspec's and text errors are ValueErrors
        log.warning("ignored %s: %s", path, error)
        return None


def _write(path: Path, value: object) -> None:
    """Write a file atomically. Raises StoreError."""
    with explain_os_errors(StoreError, f"{path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write(path, msgspec.json.encode(value))
