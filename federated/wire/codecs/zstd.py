"""Compress encoded updates with Zstandard (RFC 8878), which loses nothing.

It removes what the fixed width of an encoding wastes: most of the eight bits of an int8 are used by
few values of a row. Unchanged float32 values hardly shrink, so `raw` has no such member.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

from federated.errors import Malformed, require_extra
from federated.wire.codecs.codec import Codec, Compression

__all__ = ["ZSTD", "add_zstd"]

LEVEL = 1  # the updates are close to noise: higher levels take longer and save nothing
WINDOW = 23  # log2 of the most bytes that a decoder must remember: what RFC 8878 asks decoders for


def load() -> ModuleType:
    """Return the module of Python 3.14, or its backport. Raises MissingExtra."""
    with require_extra("a codec with zstd", "zstd", "backports.zstd"):
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    module: ModuleType = zstd
    return module


def compress(blob: memoryview) -> bytes:
    compressed: bytes = load().compress(blob, LEVEL)
    return compressed


def decompress(data: bytes | memoryview, limit: int) -> bytes:
    zstd = load()
    try:
        size = zstd.get_frame_info(data).decompressed_size
        if size is None or not 0 < size <= limit:
            raise Malformed(f"zstd: expected a frame of 1 to {limit} bytes, found {size}")
        options = {zstd.DecompressionParameter.window_log_max: WINDOW}
        decompressor = zstd.ZstdDecompressor(options=options)
        found: bytes = decompressor.decompress(data, size + 1)
    except zstd.ZstdError as error:
        raise Malformed(f"zstd: {error}") from error
    if not decompressor.eof or decompressor.unused_data or len(found) != size:
        raise Malformed(f"zstd: expected one whole frame of {size} bytes, found {len(found)}")
    return found


ZSTD = Compression("zstd", load, compress, decompress)


def add_zstd(codec: Codec) -> Codec:
    """Return the codec `NAME-zstd`, which compresses the updates that a codec encodes."""
    return replace(
        codec,
        name=f"{codec.name}-zstd",
        help=f"`{codec.name}`, compressed without further loss; requires the extra `zstd`",
        layout=f"as `{codec.name}`; the whole update is then one Zstandard frame (RFC 8878) that "
        f"states its size, with a window of at most {2 ** (WINDOW - 20)} MiB",
        compression=ZSTD,
    )
