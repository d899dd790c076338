"""A released network from a broker into a folder, checked against the digest that its card names. No torch here."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from export.verify import load, sha256
from federated.errors import ExportError, FleetError, WireError
from federated.wire import messages, topics
from federated.wire.link import Link, MqttLink
from federated.wire.transfer import Download

__all__ = ["fetch", "fetch_from"]

log = logging.getLogger(__name__)

LARGEST = 2**31 - 1  # bytes; no ONNX file with its weights inside can be larger (a limit of protobuf)
SETTLE = 1.0  # seconds of silence after which a broker has shown all cards that it retains

Clock = Callable[[], float]


def fetch_from(broker: str, run: str | None, wanted: str, directory: Path, timeout: float) -> Path:
    """`fetch` over a link of its own. Raises LinkError, and what `fetch` raises."""
    link = MqttLink(broker, f"infer-{secrets.token_hex(6)}", None)
    try:
        return fetch(link, run, wanted, directory, timeout)
    finally:
        link.close()


def fetch(link: Link, run: str | None, wanted: str, directory: Path, timeout: float, *, clock: Clock = time.monotonic) -> Path:
    """Downloads the released graph of a submodel, or of the submodel that an agent had, and returns its path in `directory`.

    run: None where the broker has releases of one run only. wanted: a submodel's or an agent's name. timeout: seconds in all.
    A file that is there already with the right digest is not downloaded again.
    Raises FleetError when there is no such release, or several runs to choose from, or it did not arrive in time; ExportError for a
    file that is not what its card says.
    """
    until = clock() + timeout
    pattern = topics.release_card(run or "+", "+")
    link.subscribe(pattern)
    try:
        release = _find(link, run, wanted, until, clock)
        directory.mkdir(parents=True, exist_ok=True)
        release, path = _download(link, release, directory, until, clock)
    finally:
        link.unsubscribe(pattern)
    metadata = load(path, release.manifest.sha256).metadata
    if (metadata["run"], metadata["submodel"]) != (release.run, release.submodel):
        raise ExportError(f"{path}: expected {release.run}/{release.submodel}, found {metadata['run']}/{metadata['submodel']}")
    return path


def _find(link: Link, run: str | None, wanted: str, until: float, clock: Clock) -> messages.Release:
    """The card that is wanted. One run's own is taken as soon as it comes; with a run to be guessed, all cards are waited for."""
    seen: dict[tuple[str, str], messages.Release] = {}
    quiet = until
    while clock() < quiet:
        message = _next(link, quiet, clock)
        if isinstance(message, messages.Release):
            seen[message.run, message.submodel] = message
            quiet = min(until, clock() + SETTLE)
            if run is not None and _means(message, wanted):
                return message
    found = [release for release in seen.values() if _means(release, wanted)]
    if len(found) == 1:
        return found[0]
    of = f" of run '{run}'" if run else ""
    if found:
        raise FleetError(f"several runs released a network for '{wanted}': {', '.join(sorted(r.run for r in found))}; choose one with --run")
    if seen:
        names = ", ".join(f"{r.run}/{r.submodel}" for r in seen.values())
        raise FleetError(f"nothing was released for '{wanted}'{of}: neither an agent nor a submodel of that name; released: {names} (--submodel)")
    raise FleetError(f"no release{of} at this broker: publish one by the coordinator's export")


def _means(release: messages.Release, wanted: str) -> bool:
    return wanted == release.submodel or release.assignment.get(wanted) == release.submodel


def _download(link: Link, release: messages.Release, directory: Path, until: float, clock: Clock) -> tuple[messages.Release, Path]:
    """The file of a release; of a newer one where that is published meanwhile."""
    path = directory / f"{release.run}-{release.submodel}.onnx"
    manifest = release.manifest
    if path.exists() and sha256(path) == manifest.sha256:
        return release, path
    if manifest.size > LARGEST:
        raise ExportError(f"release {release.run}/{release.submodel}: expected at most {LARGEST} bytes, found {manifest.size}")
    download = Download(link, topics.release(release.run, release.submodel), manifest.sha256, manifest.size, path, clock())
    newer = None
    try:
        while clock() < until:
            message = _next(link, until, clock)
            download.tick(clock())
            if isinstance(message, messages.Release) and _replaces(message, release):
                newer = message
                break
            try:
                if isinstance(message, messages.Manifest | messages.Chunk) and download.hear(message, clock()):
                    return release, path
            except WireError as error:  # chunks of an older release, or damaged ones: what is missing is asked for again
                log.warning("passed over a piece of %s: %s", path.name, str(error))  # the error itself would hold the file's memory
    finally:
        download.close()
    if newer is not None:
        return _download(link, newer, directory, until, clock)
    raise FleetError(
        f"release {release.run}/{release.submodel} ({manifest.size} bytes) did not arrive in time: wait longer (--wait), or publish it again"
    )


def _replaces(new: messages.Release, old: messages.Release) -> bool:
    return (new.run, new.submodel) == (old.run, old.submodel) and new.manifest != old.manifest


def _next(link: Link, until: float, clock: Clock) -> messages.Message | None:
    """The next message, or None after a moment without one."""
    delivery = link.receive(max(0.0, min(0.2, until - clock())))
    if delivery is None or not delivery.payload or delivery.topic.startswith("$"):
        return None
    try:
        return messages.decode(delivery.payload)
    except WireError as error:
        log.warning("passed over a message on %s: %s", delivery.topic, error)
        return None
