"""A blob in pieces: a sender and a receiver that know neither links nor clocks (`now`, in seconds,
is passed in).

A broker acknowledges that it has a message, never that the receiver has it. So the receiver says by
a bitmap which
chunks it holds; the sender stays at most 16 chunks ahead of that bitmap, and sends again what is
missing from it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from federated.errors import Refused
from federated.wire.messages import Chunk, Manifest

__all__ = ["WINDOW", "Receiver", "Sender", "slices", "split"]

WINDOW = 16  # chunks that may be under way
EAGER = 8  # chunks after which the receiver acknowledges,
LAZY = 1.0  # or seconds after the first of fewer
STALL = 5.0  # seconds without progress before the sender asks for the bitmap
SLOWEST = 60.0  # longest wait between two such questions
# bytes: what the tensor codec aligns to, so that a received blob decodes into aligned arrays
ALIGNMENT = 64


def split(data: memoryview | bytes | bytearray, chunk: int, transfer: str) -> Manifest:
    """The manifest of `data` in chunks of `chunk` bytes, under a name."""
    return Manifest(transfer, len(data), chunk, hashlib.sha256(data).hexdigest())


def slices(manifest: Manifest, data: memoryview | bytes | bytearray) -> Iterator[Chunk]:
    """All chunks in order."""
    return (_piece(manifest, memoryview(data), index) for index in range(manifest.total))


class Sender:
    """Sends a blob as the receiver's bitmap allows; nothing flows before the first grant, which an
    offer asks for.

    A sender that was interrupted is made anew: the first grant tells it what is there already.
    """

    def __init__(
        self, manifest: Manifest, data: memoryview | bytes | bytearray, now: float | None = None
    ) -> None:
        """`now`: when it was offered; by default when `stalled` is first asked. Raises ValueError
        for data of another size.
        """
        if len(data) != manifest.size:
            raise ValueError(f"{len(data)} bytes for a transfer of {manifest.size}")
        self.manifest = manifest
        self._data = memoryview(data)
        self._have = np.zeros(manifest.total, bool)
        self._sent = np.zeros(manifest.total, bool)
        self._open = self._asked = False
        self._since, self._wait = now, STALL

    @property
    def done(self) -> bool:
        """Whether the receiver has every chunk."""
        return bool(self._have.all())

    def granted(self, have: bytes, open: bool, now: float) -> None:
        """Takes the receiver's bitmap; `open`: whether it wants chunks now (an empty bitmap then
        means that it has none, else it says nothing).

        What was sent and is not in the bitmap counts as under way, unless the sender had to ask or
        the receiver lost chunks that
        it had: then it is sent again. Raises Refused for a bitmap of another size.
        """
        bits = _bits(have, self.manifest) if open else self._have
        gained, lost = bool((bits & ~self._have).any()), bool((self._have & ~bits).any())
        if self._asked or lost:
            self._sent = bits.copy()
        if gained or open != self._open:
            self._since, self._wait = now, STALL
        self._have, self._open, self._asked = bits, open, False

    @property
    def under_way(self) -> int:
        """Chunks that were sent, and that the receiver is not known to have."""
        return int((self._sent & ~self._have).sum())

    def due(self, now: float, most: int = WINDOW) -> Iterator[Chunk]:
        """The chunks to send now, at most WINDOW beyond what the receiver is known to have, and no
        more than `most`.
        """
        if not self._open or self._asked:
            return
        room = min(most, WINDOW - self.under_way)
        for index in np.flatnonzero(~self._have & ~self._sent)[: max(0, room)]:
            self._sent[index] = True
            yield _piece(self.manifest, self._data, int(index))

    def stalled(self, now: float) -> bool:
        """Whether to offer again, and so ask for the bitmap: once after 5 s without progress, then
        after 10 s, 20 s, ... 60 s.

        Also where the receiver has every chunk: what it then says may have been lost.
        """
        if self._since is None:
            self._since = now
        if now - self._since < self._wait:
            return False
        self._since, self._wait, self._asked = now, min(SLOWEST, 2 * self._wait), True
        return True


class Receiver:
    """Puts each chunk where it belongs, once, in `buffer`: a mapped file of the caller, or memory
    that is made here.

    have: a bitmap of what `buffer` holds already, after a restart.
    """

    def __init__(
        self, manifest: Manifest, *, limit: int, buffer: memoryview | None = None, have: bytes = b""
    ) -> None:
        """Raises Refused for a manifest over `limit` bytes, before anything is allocated;
        ValueError for a buffer of another size.
        """
        if manifest.size > limit:
            raise Refused(
                f"transfer {manifest.transfer}: expected at most {limit} bytes, found "
                f"{manifest.size}"
            )
        if buffer is not None and len(buffer) != manifest.size:
            raise ValueError(f"a buffer of {len(buffer)} bytes for a transfer of {manifest.size}")
        self.manifest = manifest
        self._buffer = _allocate(manifest.size) if buffer is None else buffer
        self._have = _bits(have, manifest)
        self._unsaid = 0  # chunks since the bitmap was last told
        self._first: float | None = None  # when the first of them came

    @property
    def have(self) -> bytes:
        """The bitmap, to be sent: chunk i is bit i % 8, from the least, of byte i // 8. Reading it
        counts as an acknowledgement.
        """
        self._unsaid, self._first = 0, None
        return np.packbits(self._have, bitorder="little").tobytes()

    @property
    def complete(self) -> bool:
        return bool(self._have.all())

    @property
    def got(self) -> int:
        """Chunks that are here."""
        return int(self._have.sum())

    def missing(self, most: int) -> list[int]:
        """The first `most` chunks that are not here."""
        return [int(i) for i in np.flatnonzero(~self._have)[:most]]

    def take(self, chunk: Chunk, now: float) -> bool:
        """Stores a chunk; False for one that is here already. Raises Refused for one that is
        foreign or damaged.
        """
        start, length = self._locate(chunk)
        if zlib.crc32(chunk.data) != chunk.crc32:
            raise Refused(
                f"transfer {chunk.transfer}: chunk {chunk.index} is damaged, its crc32 "
                f"is not {chunk.crc32:08x}"
            )
        self._unsaid += 1  # a repeated one too: its sender has not heard that it is here
        self._first = now if self._first is None else self._first
        if self._have[chunk.index]:
            return False
        self._buffer[start : start + length] = chunk.data
        self._have[chunk.index] = True
        return True

    def wants_grant(self, now: float) -> bool:
        """Whether the bitmap should be told: after 8 chunks, or 1 s after the first of fewer."""
        return self._unsaid >= EAGER or (self._first is not None and now - self._first >= LAZY)

    def finish(self) -> memoryview:
        """The whole blob, read-only. Raises Refused where its digest is not the promised one, and
        has nothing then.
        """
        if not self.complete:
            raise Refused(
                f"transfer {self.manifest.transfer}: "
                f"{len(self.missing(self.manifest.total))} of {self.manifest.total} "
                "chunks are missing"
            )
        digest = hashlib.sha256(self._buffer).hexdigest()
        if digest != self.manifest.sha256:
            self._have[:] = False
            raise Refused(
                f"transfer {self.manifest.transfer}: expected sha256 "
                f"{self.manifest.sha256[:16]}, found {digest[:16]}: it starts over"
            )
        return self._buffer.toreadonly()

    def release(self) -> None:
        """Lets go of the buffer, so that a mapped file can be closed; views of `finish` must be
        gone.
        """
        self._buffer.release()

    def _locate(self, chunk: Chunk) -> tuple[int, int]:
        """Where a chunk belongs and how long it is, in bytes."""
        wanted, found = self.manifest, (chunk.transfer, chunk.total, chunk.size)
        if (
            found != (wanted.transfer, wanted.total, wanted.size)
            or not 0 <= chunk.index < wanted.total
        ):
            expected = f"expected one of {wanted.total} chunks of {wanted.size} bytes"
            raise Refused(
                f"transfer {wanted.transfer}: {expected}, found {chunk.index} of "
                f"{chunk.total} of {chunk.transfer}"
            )
        start = chunk.index * wanted.chunk
        length = min(wanted.chunk, wanted.size - start)
        if len(chunk.data) != length:
            raise Refused(
                f"transfer {wanted.transfer}: expected {length} bytes in chunk "
                f"{chunk.index}, found {len(chunk.data)}"
            )
        return start, length


def _piece(manifest: Manifest, data: memoryview, index: int) -> Chunk:
    part = data[index * manifest.chunk : (index + 1) * manifest.chunk]
    return Chunk(
        manifest.transfer, index, manifest.total, manifest.size, zlib.crc32(part), bytes(part)
    )


def _bits(have: bytes, manifest: Manifest) -> NDArray[np.bool_]:
    if not have:
        return np.zeros(manifest.total, bool)
    if len(have) != -(-manifest.total // 8):
        raise Refused(
            f"transfer {manifest.transfer}: expected a bitmap of "
            f"{-(-manifest.total // 8)} bytes, found {len(have)}"
        )
    return np.unpackbits(
        np.frombuffer(have, np.uint8), count=manifest.total, bitorder="little"
    ).astype(bool)


def _allocate(size: int) -> memoryview:
    """`size` bytes of memory that start at a multiple of ALIGNMENT."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return memoryview(raw[offset : offset + size])  # type: ignore[arg-type]
