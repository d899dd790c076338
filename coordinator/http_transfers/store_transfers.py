"""Let a run's weights and updates travel through a bucket of an S3-compatible store.

PREFIX/RUN/weights/...    see `stored_weights`
PREFIX/RUN/updates/...    see `stored_updates`
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from coordinator.http_transfers.object_store import Bucket, ObjectStore, StoreAway, StoreFailure
from coordinator.http_transfers.store_thread import StoreThread
from coordinator.http_transfers.stored_updates import StoredUpdates
from coordinator.http_transfers.stored_weights import StoredWeights
from coordinator.http_transfers.transfer_urls import find_origin
from coordinator.settings.service_tables import Http
from coordinator.store.control_requests import Stopped
from federated.errors import ConfigError, LinkError, WireError
from federated.http_transfers.http_client import HttpAccess
from federated.http_transfers.http_upload import PartUpload
from federated.runtime.console import Say
from federated.runtime.listen_address import check_public_url, is_loopback
from federated.wire.messages import Grant, Manifest

__all__ = ["StoreTransfers", "parse_bucket", "use_store"]

log = logging.getLogger(__name__)

EXAMPLE = "s3://BUCKET or s3://BUCKET/PREFIX"
CHECK = "check"  # key of an object that exists while the store is checked
CHECKED = b"check"
CHECK_EXPIRY = 60
# seconds between two probes of the store. A store that does not answer is lost after two of them
# (`StoreThread`) and their timeouts: within the shortest lease, which does not run then.
LOOK = 2.0


class StoreTransfers:
    """The transfers of a run through a store (`Transfers`)."""

    shared, local = True, False

    def __init__(
        self,
        store: ObjectStore,
        spool: Path,
        above: int,
        expiry: int,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """See `StoredWeights` and `StoredUpdates`."""
        self.above, self._store = above, store
        self.origin = find_origin(store.sign_get(CHECK, CHECK_EXPIRY))
        self._weights = StoredWeights(store, spool, expiry, leads)
        self._updates = StoredUpdates(store, spool, expiry, leads)
        self._probe = StoreThread("probe of the store", self._look)
        self._probe.start()

    @property
    def lost(self) -> str:
        return self._probe.lost

    def _look(self) -> float:
        """Try whether the store works, if agents need it."""
        if self._weights.wanted:
            self._store.probe()
        return LOOK

    def find_weights(self, sha256: str) -> str:
        try:
            return self._weights.find(sha256)
        except StoreFailure as error:  # such as credentials that cannot be renewed now
            log.warning("cannot sign the address of weights: %s", error)
            return ""

    def withdraw(self, sha256: str) -> None:
        self._weights.withdraw(sha256)

    def grant(self, place: PurePosixPath, manifest: Manifest) -> Grant:
        try:
            return self._updates.grant(place, manifest)
        except StoreFailure as error:
            log.warning("cannot sign the address of an update: %s", error)
            return Grant(manifest.transfer, b"", False)

    def end(self, place: PurePosixPath) -> None:
        self._updates.end(place)

    def close(self) -> None:
        """End what is under way."""
        self._probe.close()
        self._weights.close()
        self._updates.close()


@contextmanager
def use_store(
    config: Http, run: str, spool: Path, say: Say, leads: Callable[[], bool]
) -> Iterator[StoreTransfers]:
    """Transfer through the configured store inside the context. When the run ends or is stopped,
    remove its objects: another coordinator may still need them after an error, or if it took over
    the run.

    leads: whether none did. Raises LinkError if the store cannot be reached, ConfigError if it
        cannot be used.
    """
    bucket = parse_bucket(config, run)
    check_exposure(config)
    try:
        store = ObjectStore(bucket)
        check_store(store, signed=not bucket.public)
    except StoreAway as error:  # it may return, so a service manager should try again
        raise LinkError(f"http.store = '{config.store}': {error}: check http.endpoint") from error
    except (
        StoreFailure,
        ValueError,
    ) as error:  # botocore refuses a malformed address by the latter
        raise ConfigError(f"http.store = '{config.store}': {error}") from error
    spool.mkdir(parents=True, exist_ok=True)
    made = StoreTransfers(store, spool, config.above, config.expiry, leads)
    more = f" of more than {config.above} bytes" if config.above else ""
    say(f"agents transfer weights and updates{more} through {bucket.shown}")
    try:
        yield made
    except (Stopped, KeyboardInterrupt):
        made.close()
        if leads():
            clear(store)
        raise
    finally:
        made.close()
    if leads():
        clear(store)


def parse_bucket(config: Http, run: str) -> Bucket:
    """Return where the objects of a run are kept. Raises ConfigError."""
    found = re.fullmatch(
        r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([\w!.*'()/-]*))?", config.store
    )
    if found is None:
        raise ConfigError(f"http.store: expected {EXAMPLE}, found '{config.store}'")
    for setting, url in (("http.endpoint", config.endpoint), ("http.url", config.url)):
        if url:
            check_public_url(url, setting)
    folders = [one for one in (found[2] or "").split("/") if one]
    prefix = "/".join([*folders, run, ""])
    return Bucket(found[1], prefix, config.endpoint, config.region, config.url)


def check_exposure(config: Http) -> None:
    """Raise ConfigError for a combination that has no meaning, or for a store that others could
    read along.
    """
    for name in ("listen", "certificate", "key"):
        if getattr(config, name):
            raise ConfigError(f"http.store: run without http.{name}, which is for a server")
    for setting, url in (("http.endpoint", config.endpoint), ("http.url", config.url)):
        parts = urlsplit(url)
        if parts.scheme == "http" and not is_local(parts.hostname or ""):
            raise ConfigError(
                f"{setting} = '{url}': devices would transfer without TLS: name an address with "
                "https://"
            )


def is_local(host: str) -> bool:
    try:
        return is_loopback(host)
    except OSError:  # unknown here
        return False


def check_store(store: ObjectStore, *, signed: bool) -> None:
    """Try everything that a run does. signed: also upload as an agent does. Raises StoreFailure."""
    store.list("")
    if signed:
        check_signatures(store)
    else:
        store.sign_put(CHECK, len(CHECKED), CHECK_EXPIRY)
    store.delete([CHECK])


def check_signatures(store: ObjectStore) -> None:
    """Check that the store takes what a signed address permits. Raises StoreFailure."""
    access = HttpAccess(os.environ.get("AWS_CA_BUNDLE"))
    url = store.sign_put(CHECK, len(CHECKED), CHECK_EXPIRY)
    try:
        PartUpload(access, {url: memoryview(CHECKED)}, "a check").transfer_once()
    except (OSError, WireError) as error:
        kind = StoreAway if isinstance(error, OSError) else StoreFailure
        raise kind(f"{store.bucket.shown}: an upload at a signed address fails: {error}") from error
    if (found := b"".join(store.read(CHECK))) != CHECKED:
        raise StoreFailure(f"{store.bucket.shown}: expected what was stored, found {found[:20]!r}")
    try:
        PartUpload(access, {url: memoryview(CHECKED * 2)}, "a check").transfer_once()
    except (OSError, WireError):
        return
    log.warning(
        "%s does not check the sizes of uploads: until the coordinator removes what is too large, "
        "a device can fill it",
        store.bucket.shown,
    )


def clear(store: ObjectStore) -> None:
    """Remove all objects of the run."""
    try:
        store.delete(store.list(""))
    except StoreFailure as error:
        log.warning("objects of the run remain: %s", error)
