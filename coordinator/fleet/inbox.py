"""Updates on their way in: each transfer into a file of the spool, a few at a time, acknowledged by
bitmap; a file outlives the process.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import math
import mmap
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from federated.errors import Refused
from federated.runtime import files
from federated.task import Key, Update
from federated.wire import messages
from federated.wire.codecs import update_file
from federated.wire.codecs.codec import Codec
from federated.wire.partial import HAVE, PART, Partial

__all__ = ["Inbox"]

log = logging.getLogger(__name__)

TEMPORARY = "now"  # folder of the spool for updates that are not kept once they are folded
IDLE = 30.0  # seconds by which a transfer is judged while others wait for its slot
PACE = 32_768  # bytes a second that keep it its slot: less than a poor mobile link brings
# times that a transfer may be whole and not what was promised: a power cut spoils it once, a
# damaged file each time
SPOILT = 3


@dataclass(frozen=True)
class Place:
    """What is expected of a key: at most so many bytes, into this file."""

    limit: int
    path: Path


@dataclass
class Transfer:
    """One update's chunks. progressed: when the last new chunk came, in the coordinator's seconds.
    spoilt: times that its digest was wrong.

    since, got: when it got its slot or was last judged, and how many chunks were here then.
    """

    agent: str
    offer: messages.Offer
    partial: Partial
    progressed: float
    spoilt: int = 0
    since: float = 0.0
    got: int = 0

    def begin(self, now: float) -> None:
        """From now on it is judged anew."""
        self.since, self.got = now, self.partial.receiver.got

    def pace(self, now: float) -> float:
        """Bytes a second since it began; 0 where it is silent, endless where it is too early to
        tell.
        """
        if now - self.progressed > IDLE:
            return 0.0
        if now - self.since <= IDLE:
            return math.inf
        return (
            (self.partial.receiver.got - self.got) * self.offer.manifest.chunk / (now - self.since)
        )


class Inbox:
    """Receives what is expected, of the size that is expected, and nothing else; at most `slots`
    transfers flow at a time.

    While others wait, a transfer keeps its slot as long as it is not slower than PACE. A slower one
    goes to the end of the line and goes on from where it was, and a silent one leaves: so nobody
    waits for each of those before it longer than IDLE, or than its bytes take at PACE.

    What finds no room on the disk waits as for a slot. reserve: bytes that are left free, for what
    removes updates from the spool. full: something waits for room, until who makes some says so
    (`relieved`).
    sync: whether a received update is on disk, not only with the system, before it is acknowledged.
    """

    def __init__(self, spool: Path, slots: int, *, sync: bool = True) -> None:
        self.spool, self.slots, self._sync = spool, slots, sync
        self.reserve, self.full = 0, False
        self._told = False  # whether a person was told that there is no room
        self._expected: dict[Key, Place] = {}
        self._flowing: dict[Key, Transfer] = {}
        self._parked: dict[Key, Transfer] = {}  # what came before a transfer lost its slot
        self._waiting: dict[Key, messages.Offer] = {}
        spool.mkdir(parents=True, exist_ok=True)

    def expect(self, limits: Mapping[Key, int], hold: Collection[Key] = ()) -> None:
        """From now on, only these with at most so many bytes, and as before those that are held;
        what else was on its way is dropped.

        What is begun in the spool, of an earlier process, goes on. What is whole there is removed:
        nobody recorded its digest, so damage to it would go unnoticed. Its agent was not answered,
        and sends it again.
        """
        hold = set(hold)
        held = {key: place for key, place in self._expected.items() if key in hold}
        new = {
            key: Place(limit, self.path(key)) for key, limit in limits.items() if key not in held
        }
        for key in {*self._flowing, *self._parked} - held.keys():
            self._drop(key)
        self._waiting = {key: offer for key, offer in self._waiting.items() if key in held}
        self._expected, self.full, self._told = held | new, False, False
        for place in new.values():
            place.path.unlink(missing_ok=True)

    def expect_also(self, key: Key, limit: int) -> None:
        """From now on, this one with at most so many bytes, beside the others."""
        self._expected[key] = Place(limit, self.path(key))

    def path(self, key: Key) -> Path:
        """Where an update lies once it is whole: those of a training by round, all others
        together.
        """
        folder = f"round-{key.round:06d}" if key.work == "train" else TEMPORARY
        return self.spool / folder / named(key)

    def forget(self, folder: str, keep: Collection[Key] = ()) -> None:
        """Removes a folder of the spool, or all that fit a pattern such as `round-*`, and what is
        in them, but for what belongs to these.
        """
        kept = {named(key).partition(".")[0] for key in keep}
        for path in self.spool.glob(folder):
            if not kept:
                shutil.rmtree(path, ignore_errors=True)
            for file in path.glob("*"):
                if file.name.partition(".")[0] not in kept:
                    file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something in it is kept
                path.rmdir()

    def open(self, agent: str, offer: messages.Offer, now: float) -> messages.Grant:
        """Answers an offer: with a slot and the bitmap of what is there already, or with the word
        to wait, also for room on the disk.

        Raises Refused when it is too large.
        """
        manifest = offer.manifest
        key = Key(agent, offer.submodel, offer.round, offer.work)
        limit = self._expected[key].limit if key in self._expected else 0
        if not 0 < manifest.size <= limit:
            raise Refused(
                f"update of {agent} for {offer.submodel}: at most {limit} bytes "
                f"expected, {manifest.size} offered"
            )
        known = self._flowing.get(key) or self._parked.get(key)
        if known is not None and known.offer.manifest != manifest:
            self._drop(key)
        if key in self._flowing:
            return self._grant(self._flowing[key])
        self._waiting[key] = offer
        if (
            len(self._flowing) >= self.slots
            or len(self._waiting) > 1
            or (self.full and key not in self._parked)
        ):
            return messages.Grant(manifest.transfer, b"", False)
        return self._admit(key, now)

    def take(
        self, agent: str, chunk: messages.Chunk, now: float
    ) -> tuple[messages.Offer, Path | None] | None:
        """Stores a chunk; the offer and the file once the transfer is whole, without the file where
        it was spoilt too often and is given up.

        What was under way when a transfer lost its slot is stored too: thrown away, it would be
        sent again and again.
        Raises Refused for a corrupt chunk or a wrong digest: the transfer goes on, or starts over.
        """
        key = self.key_of(agent, chunk.transfer)
        if key is None:
            return None  # late
        transfer = self._transfer(key)
        if transfer.partial.take(chunk, now):
            transfer.progressed = now
        if not transfer.partial.complete:
            return None
        try:
            path = transfer.partial.finish(sync=self._sync)
        except Refused:
            transfer.spoilt += 1
            if transfer.spoilt < SPOILT:
                raise
            self._drop(key)
            self._waiting.pop(key, None)
            return transfer.offer, None
        self._flowing.pop(key, None)
        self._parked.pop(key, None)
        self._waiting.pop(key, None)
        if self._sync:
            files.sync(path.parent)
        return transfer.offer, path

    def key_of(self, agent: str, transfer: str) -> Key | None:
        """The update that a transfer brings; None where it is not expected."""
        return next(
            (
                key
                for key in (*self._flowing, *self._parked)
                if key.agent == agent and self._transfer(key).offer.manifest.transfer == transfer
            ),
            None,
        )

    def _transfer(self, key: Key) -> Transfer:
        return self._flowing.get(key) or self._parked[key]

    @property
    def load(self) -> tuple[int, int]:
        """How many transfers flow, and how many wait for a slot."""
        return len(self._flowing), len(self._waiting)

    @property
    def waiting(self) -> frozenset[Key]:
        """What waits for a slot, or for room on the disk."""
        return frozenset(self._waiting)

    def remove(self, key: Key) -> None:
        """Removes an update that lies here whole."""
        self.path(key).unlink(missing_ok=True)

    def grants(self, now: float, *, quiet: bool = True) -> Iterator[tuple[str, messages.Grant]]:
        """The acknowledgements that are due, and slots for those who wait. quiet: all was heard
        that was sent, so that transfers can be judged.
        """
        for key in self._slow(now) if quiet else []:
            transfer = self._parked[key] = self._flowing.pop(key)
            if transfer.pace(now):
                self._waiting[key] = transfer.offer  # a silent one asks for itself when it is back
                yield transfer.agent, messages.Grant(transfer.offer.manifest.transfer, b"", False)
        for transfer in list(self._flowing.values()):
            if transfer.partial.receiver.wants_grant(now):
                yield transfer.agent, self._grant(transfer)
        while len(self._flowing) < self.slots and (
            first := next((k for k in self._waiting if not self.full or k in self._parked), None)
        ):
            yield first[0], self._admit(first, now)

    def _slow(self, now: float) -> list[Key]:
        """Whose slots go to those who wait: no more than these, the slowest first."""
        paces = {key: transfer.pace(now) for key, transfer in self._flowing.items()}
        slow = sorted((key for key, pace in paces.items() if pace < PACE), key=paces.__getitem__)[
            : len(self._waiting)
        ]
        for key, transfer in self._flowing.items():
            if key not in slow and now - transfer.since > IDLE:
                transfer.begin(now)
        return slow

    def read(self, path: Path, codec: Codec) -> Update:
        """The update in a file; by the codec raw, its tensors are views of the mapped file. Raises
        WireError.
        """
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return update_file.decode(memoryview(mapped), codec)

    def _make(self, folder: Path) -> None:
        """A folder that is there after a power cut too. Raises OSError."""
        if not folder.exists():
            folder.mkdir()
            if self._sync:
                files.sync(folder.parent)

    def relieved(self, made: bool) -> None:
        """Tries again those who wait for room. made: whether there is more of it.

        Else, where nothing flows that will be whole and go, what came of the transfer that lost its
        slot first is removed, or what an earlier process had of one: its agent sends it anew.
        """
        if not made and not self._flowing:
            if self._parked:
                self._drop(next(iter(self._parked)))
            elif left := next(
                (
                    part
                    for place in self._expected.values()
                    if (part := beside(place.path, PART)).exists()
                ),
                None,
            ):
                left.unlink()
                left.with_suffix(HAVE).unlink(missing_ok=True)
        self.full = False

    def _admit(self, key: Key, now: float) -> messages.Grant:
        """A slot for one that waits; where there is no room for it, it waits on, behind the
        others.
        """
        offer = self._waiting.pop(key)
        transfer = self._parked.pop(key, None)
        if transfer is None:
            try:
                partial = self._begin(offer.manifest, self._expected[key].path)
            except OSError as error:
                if not self._told:
                    log.error(
                        "no room for the %d bytes of %s by %s in %s: %s",
                        offer.manifest.size,
                        key[1],
                        key[0],
                        self.spool,
                        error.strerror,
                    )
                self._told = self.full = True
                self._waiting[key] = offer
                return messages.Grant(offer.manifest.transfer, b"", False)
            transfer = Transfer(key[0], offer, partial, now)
        transfer.progressed = now
        transfer.begin(now)
        self._flowing[key] = transfer
        return self._grant(transfer)

    def _begin(self, manifest: messages.Manifest, path: Path) -> Partial:
        """A transfer with all of its room, or what an earlier process had of it. Raises OSError
        where more would take what is reserved.
        """
        self._make(path.parent)
        part = beside(path, PART)
        more = manifest.size - (part.stat().st_size if part.exists() else 0)
        if more > 0 and shutil.disk_usage(self.spool).free < more + self.reserve:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return Partial(manifest, path, limit=manifest.size)

    def _drop(self, key: Key) -> None:
        for store in (self._flowing, self._parked):
            if key in store:
                store.pop(key).partial.discard()

    def _grant(self, transfer: Transfer) -> messages.Grant:
        return messages.Grant(transfer.offer.manifest.transfer, transfer.partial.tell(), True)


def beside(path: Path, suffix: str) -> Path:
    """A file of a transfer into `path`."""
    return path.with_name(path.name + suffix)


def named(key: Key) -> str:
    """A name of our own: no two transfers share a file, whatever they call themselves, and a later
    process finds it.
    """
    return f"{hashlib.sha256('/'.join(map(str, key)).encode()).hexdigest()[:32]}.update"
