"""Updates on their way in: each transfer into a file of the spool, a few at a time, acknowledged by bitmap."""

from __future__ import annotations

import contextlib
import logging
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from federated.errors import Malformed, Refused
from federated.task import Update
from federated.wire import messages, tensors
from federated.wire.chunks import Receiver
from federated.wire.transfer import allocate

__all__ = ["Inbox"]

log = logging.getLogger(__name__)

IDLE = 30.0  # seconds without a chunk after which a transfer's slot goes to another


@dataclass
class Transfer:
    """One update's chunks, in a memory-mapped file. progressed: when the last new chunk came, in the coordinator's seconds."""

    agent: str
    offer: messages.Offer
    path: Path
    map: mmap.mmap
    receiver: Receiver
    progressed: float

    def close(self) -> None:
        with contextlib.suppress(BufferError):  # somebody still holds a view: it closes when they let go
            self.receiver.release()
            self.map.close()


class Inbox:
    """Receives what is expected, of the size that is expected, and nothing else; at most `slots` transfers flow at a time."""

    def __init__(self, spool: Path, slots: int) -> None:
        self.spool, self.slots = spool, slots
        self._limits: Mapping[tuple[str, str], int] = {}
        self._flowing: dict[tuple[str, str], Transfer] = {}
        self._parked: dict[tuple[str, str], Transfer] = {}  # what came before a transfer lost its slot
        self._waiting: dict[tuple[str, str], messages.Offer] = {}
        self._opened = 0
        spool.mkdir(parents=True, exist_ok=True)
        for path in spool.glob("*.update"):
            path.unlink()  # of a coordinator that died: its tasks are void

    def expect(self, limits: Mapping[tuple[str, str], int]) -> None:
        """From now on, only these (agent, submodel name) with at most so many bytes; what was on its way is dropped."""
        self._limits = limits
        for transfer in [*self._flowing.values(), *self._parked.values()]:
            transfer.close()
            transfer.path.unlink(missing_ok=True)
        self._flowing, self._parked, self._waiting = {}, {}, {}

    def open(self, agent: str, offer: messages.Offer, now: float) -> messages.Grant:
        """Answers an offer: with a slot and the bitmap of what is there already, or with the word to wait. Raises Refused when it is too large."""
        manifest = offer.manifest
        limit = self._limits.get((agent, offer.submodel), 0)
        if not 0 < manifest.size <= limit:
            raise Refused(f"update of {agent} for {offer.submodel}: at most {limit} bytes expected, {manifest.size} offered")
        key = (agent, manifest.transfer)
        known = self._flowing.get(key) or self._parked.get(key)
        if known is not None and known.offer.manifest != manifest:
            self._forget(key)
        if key in self._flowing:
            return self._grant(self._flowing[key])
        if len(self._flowing) >= self.slots:
            self._waiting[key] = offer
            return messages.Grant(manifest.transfer, b"", False)
        return self._grant(self._admit(key, offer, now))

    def take(self, agent: str, chunk: messages.Chunk, now: float) -> tuple[messages.Offer, Path] | None:
        """Stores a chunk; the offer and the file once the transfer is whole. Raises Refused for a corrupt chunk or a wrong digest."""
        key = (agent, chunk.transfer)
        transfer = self._flowing.get(key)
        if transfer is None:
            return None  # late, or of a transfer that waits for a slot
        if transfer.receiver.take(chunk, now):
            transfer.progressed = now
        if not transfer.receiver.complete:
            return None
        transfer.receiver.finish()
        del self._flowing[key]
        transfer.close()
        return transfer.offer, transfer.path

    def grants(self, now: float) -> Iterator[tuple[str, messages.Grant]]:
        """The acknowledgements that are due, and slots for those who wait."""
        for key, transfer in list(self._flowing.items()):
            if transfer.receiver.wants_grant(now):
                yield transfer.agent, self._grant(transfer)
            elif now - transfer.progressed > IDLE and self._waiting:
                self._parked[key] = self._flowing.pop(key)
        while self._waiting and len(self._flowing) < self.slots:
            key = next(iter(self._waiting))
            offer = self._waiting.pop(key)
            try:
                yield key[0], self._grant(self._admit(key, offer, now))
            except Refused as error:
                log.warning("no room for %s of %s: %s", key[1], key[0], error)  # it asks again

    def read(self, path: Path) -> Update:
        """The update in a file, its tensors as views of the mapped file. Raises Malformed."""
        with path.open("rb") as file:
            meta, values = tensors.decode(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        try:
            return replace(msgspec.convert(meta, Update), tensors=values)
        except msgspec.ValidationError as error:
            raise Malformed(f"header of an update: {error}") from error

    def _admit(self, key: tuple[str, str], offer: messages.Offer, now: float) -> Transfer:
        transfer = self._parked.pop(key, None)
        if transfer is None:
            self._opened += 1
            path = self.spool / f"{self._opened}.update"  # a name of our own: no two transfers share a file, whatever they call themselves
            try:
                mapped = allocate(path, offer.manifest.size)
            except OSError as error:
                raise Refused(f"no room at the coordinator for {offer.manifest.size} bytes: {error.strerror}") from error
            receiver = Receiver(offer.manifest, limit=offer.manifest.size, buffer=memoryview(mapped))
            transfer = Transfer(key[0], offer, path, mapped, receiver, now)
        transfer.progressed = now
        self._flowing[key] = transfer
        return transfer

    def _forget(self, key: tuple[str, str]) -> None:
        for store in (self._flowing, self._parked):
            if key in store:
                transfer = store.pop(key)
                transfer.close()
                transfer.path.unlink(missing_ok=True)

    def _grant(self, transfer: Transfer) -> messages.Grant:
        return messages.Grant(transfer.offer.manifest.transfer, transfer.receiver.have, True)
