"""Transfer a blob in chunks: a sender and a receiver that use neither a link nor a clock.

Callers pass the time as `now`, in seconds. A broker acknowledges that it has a message, never that
the receiver has it. So the receiver reports the chunks that it has in a bitmap. The sender stays at
most 16 chunks ahead of that bitmap and repeats the chunks that it lacks.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from federated.errors import Refused
from federated.wire.messages import Chunk, Manifest

try:  # five to seven times as fast
    from zlib_ng.zlib_ng import crc32
except ImportError:  # there is no wheel for this processor
    from zlib import crc32

__all__ = ["WINDOW", "Receiver", "Sender", "slices", "split"]

WINDOW = 16  # largest number of chunks in flight
GRANT_CHUNKS = 8  # unacknowledged chunks after which the receiver sends its bitmap
GRANT_DELAY = 1.0  # seconds after the first of fewer chunks until it sends the bitmap
STALL = (
    5.0  # seconds without progress until the sender repeats its offer, which asks for the bitmap
)
MAX_STALL = 60.0  # the pause doubles with each repetition, up to this many seconds
MAX_QUEUED = 240.0  # up to this many while the receiver answers that the sender waits for its turn


def split(
    data: memoryview | bytes | bytearray, chunk: int, transfer: str, url: str = ""
) -> Manifest:
    """Return the manifest of a transfer of `data` in chunks of `chunk` bytes. url: its address, if
    it has one.
    """
    return Manifest(transfer, len(data), chunk, hashlib.sha256(data).hexdigest(), url)


def slices(manifest: Manifest, data: memoryview | bytes | bytearray) -> Iterator[Chunk]:
    """Return all chunks in order."""
    return (_make_chunk(manifest, memoryview(data), index) for index in range(manifest.total))


class Sender:
    """Sends a blob as the receiver's bitmap allows. Nothing is sent before the first grant, which
    an offer asks for.
    """

    def __init__(
        self, manifest: Manifest, data: memoryview | bytes | bytearray, now: float | None = None
    ) -> None:
        """Raise ValueError if `data` has another size. now: see `restart`."""
        if len(data) != manifest.size:
            raise ValueError(f"{len(data)} bytes for a transfer of {manifest.size}")
        self.manifest, self._data = manifest, memoryview(data)
        self.restart(now)

    def restart(self, now: float | None = None) -> None:
        """Start over. The next grant tells which chunks the receiver already has.

        now: when the transfer was offered; None: at the first call of `check_stall`.
        """
        self._have = np.zeros(self.manifest.total, bool)
        self._sent = self._have.copy()
        self._in_flight = 0
        self._open = self._asked = False
        self._since, self._wait = now, STALL
        self._queued = 0.0  # pause since the last grant if that lets the sender wait

    @property
    def complete(self) -> bool:
        """True if the receiver has every chunk."""
        return bool(self._have.all())

    def take_grant(self, have: bytes, open: bool, now: float, *, queued: bool = True) -> None:
        """Update the receiver's bitmap. open: whether it accepts chunks now. An empty bitmap then
        means that it has none, otherwise that it says nothing about them.

        queued: whether the turn of this transfer has not come, if it is not open. The bytes may
            also go another way, where some can be lost meanwhile.

        A chunk that was sent and is not in the bitmap counts as in flight. It is sent again only if
        the sender had to ask, or if the receiver lost chunks that it had. Raises Refused for a
        bitmap of another size.
        """
        bits = _read_bitmap(have, self.manifest) if open else self._have
        gained, lost = bool((bits & ~self._have).any()), bool((self._have & ~bits).any())
        if self._asked or lost:
            self._sent = bits.copy()
        if gained or open != self._open:
            self._since, self._wait = now, STALL
        self._have, self._open, self._asked = bits, open, False
        self._in_flight = int((self._sent & ~bits).sum())
        queued = queued and not open
        self._queued = min(MAX_QUEUED, 2 * self._queued) or MAX_STALL if queued else 0.0
        if queued and not self._in_flight:  # it has lost nothing
            self._since, self._wait = now, self._queued

    @property
    def in_flight(self) -> int:
        """Number of chunks that were sent and are not in the receiver's bitmap."""
        return self._in_flight

    def next_chunks(self, most: int = WINDOW) -> Iterator[Chunk]:
        """Yield the chunks to send now: at most `most`, and at most WINDOW beyond the receiver's
        bitmap.
        """
        if not self._open or self._asked or self._sent.all():
            return
        room = min(most, WINDOW - self.in_flight)
        for index in np.flatnonzero(~self._have & ~self._sent)[: max(0, room)]:
            self._sent[index] = True
            self._in_flight += 1
            yield _make_chunk(self.manifest, self._data, int(index))

    def check_stall(self, now: float) -> bool:
        """Return whether to repeat the offer, which asks for the bitmap: after 5 s without
        progress, then after 10 s, 20 s, ... 60 s. While the receiver answers that its turn has not
        come, after 60 s, 120 s, and every 240 s, since thousands may wait.

        This includes a receiver that has every chunk, because its receipt may have been lost.
        """
        if self._since is None:
            self._since = now
        if now - self._since < self._wait:
            return False
        self._since, self._wait, self._asked = now, min(MAX_STALL, 2 * self._wait), True
        return True


class Receiver:
    """Collects the chunks of a blob in memory; `PartialFile` collects them in a file."""

    def __init__(self, manifest: Manifest, *, limit: int) -> None:
        """Raise Refused for a manifest over `limit` bytes, before anything is allocated."""
        if manifest.size > limit:
            raise Refused(
                f"transfer {manifest.transfer}: expected at most {limit} bytes, found "
                f"{manifest.size}"
            )
        self.manifest = manifest
        self._unacknowledged = 0  # chunks since the last acknowledgement
        self._first: float | None = None  # when the first of them arrived
        self._have = _read_bitmap(self._open(), manifest)
        # digest of the first bytes, computed as their chunks arrive in order
        self._sha256, self._hashed = hashlib.sha256(), 0

    def _open(self) -> bytes:
        """Make room for the blob, and return the bitmap of the chunks that it already holds."""
        self._buffer = memoryview(mmap.mmap(-1, max(1, self.manifest.size)))[: self.manifest.size]
        return b""

    def _write(self, start: int, data: memoryview) -> None:
        """Store bytes of the blob."""
        self._buffer[start : start + len(data)] = data

    def _read(self, start: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes of the blob from `start` on, in pieces."""
        yield self._buffer[start:]

    def _view(self) -> memoryview:
        """Return the blob, read-only."""
        return self._buffer.toreadonly()

    @property
    def complete(self) -> bool:
        return bool(self._have.all())

    @property
    def received(self) -> int:
        """Number of chunks received."""
        return int(self._have.sum())

    @property
    def missing(self) -> list[int]:
        """Indices of the chunks that are missing."""
        return [int(index) for index in np.flatnonzero(~self._have)]

    def lacks(self, index: int) -> bool:
        """Return True if there is such a chunk and it is missing."""
        return index < self.manifest.total and not self._have[index]

    def take(self, chunk: Chunk, now: float) -> bool:
        """Store a chunk, and return whether it is new. Raises Refused for a chunk that is damaged
        or belongs to another transfer.
        """
        start, length = self._locate(chunk)
        if crc32(chunk.data) != chunk.crc32:
            raise Refused(
                f"transfer {chunk.transfer}: chunk {chunk.index} is damaged, its crc32 "
                f"is not {chunk.crc32:08x}"
            )
        self._unacknowledged += 1  # a repeated one too: its acknowledgement may have been lost
        self._first = now if self._first is None else self._first
        if self._have[chunk.index]:
            return False
        self._write(start, chunk.data)
        self._have[chunk.index] = True
        if start == self._hashed:
            self._sha256.update(chunk.data)
            self._hashed += length
        return True

    def is_grant_due(self, now: float) -> bool:
        """Return whether to acknowledge: after 8 chunks, or 1 s after the first of fewer."""
        return self._unacknowledged >= GRANT_CHUNKS or (
            self._first is not None and now - self._first >= GRANT_DELAY
        )

    def acknowledge(self) -> bytes:
        """Return the bitmap to send: chunk i is bit i % 8, from the least significant, of byte
        i // 8.
        """
        self._unacknowledged, self._first = 0, None
        return np.packbits(self._have, bitorder="little").tobytes()

    def verify(self) -> memoryview:
        """Return the whole blob, read-only. If its digest is wrong, discard all chunks and raise
        Refused. Also raises Refused if chunks are missing.
        """
        if not self.complete:
            raise Refused(
                f"transfer {self.manifest.transfer}: {len(self.missing)} of "
                f"{self.manifest.total} chunks are missing"
            )
        for piece in self._read(self._hashed):
            self._sha256.update(piece)
        digest, self._hashed = self._sha256.hexdigest(), self.manifest.size
        if digest != self.manifest.sha256:
            self._have[:] = False
            self._sha256, self._hashed = hashlib.sha256(), 0
            raise Refused(
                f"transfer {self.manifest.transfer}: expected sha256 "
                f"{self.manifest.sha256[:16]}, found {digest[:16]}; the transfer starts over"
            )
        return self._view()

    def _locate(self, chunk: Chunk) -> tuple[int, int]:
        """Return the offset and the length of a chunk, in bytes."""
        wanted, found = self.manifest, (chunk.transfer, chunk.total, chunk.size)
        if (
            found != (wanted.transfer, wanted.total, wanted.size)
            or not 0 <= chunk.index < wanted.total
        ):
            raise Refused(
                f"transfer {wanted.transfer}: expected one of {wanted.total} chunks of "
                f"{wanted.size} bytes, found {chunk.index} of {chunk.total} of {chunk.transfer}"
            )
        start = chunk.index * wanted.chunk
        length = min(wanted.chunk, wanted.size - start)
        if len(chunk.data) != length:
            raise Refused(
                f"transfer {wanted.transfer}: expected {length} bytes in chunk "
                f"{chunk.index}, found {len(chunk.data)}"
            )
        return start, length


def _make_chunk(manifest: Manifest, data: memoryview, index: int) -> Chunk:
    part = data[index * manifest.chunk : (index + 1) * manifest.chunk]
    return Chunk(manifest.transfer, index, manifest.total, manifest.size, crc32(part), part)


def _read_bitmap(have: bytes, manifest: Manifest) -> NDArray[np.bool_]:
    """Decode a bitmap; an empty one means that no chunk is there."""
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
