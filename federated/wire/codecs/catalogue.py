"""The codecs by name."""

from __future__ import annotations

from federated.errors import Unknown
from federated.runtime.plugins import find
from federated.wire.codecs.codec import Codec
from federated.wire.codecs.fp16 import FP16
from federated.wire.codecs.raw import RAW
from models.extensions import Kind, loaded

__all__ = ["CODECS", "codec", "codec_names", "find_codec"]

KIND = Kind("codec", "espalier.codecs", Codec)

CODECS: dict[str, Codec] = {
    "fp16": FP16,
    "raw": RAW,
}


def find_codec(name: str) -> Codec:
    """The codec of a name that the owner of this machine wrote: built in, of an installed package
    (`espalier.codecs`), or `module:attribute`. Raises Unknown, nearest names first; ConfigError for
    one that cannot be imported.
    """
    return find(KIND, name, CODECS)


def codec(name: str) -> Codec:
    """The codec of a name from a message: built in, of an installed package, or one that
    `find_codec` was asked for before. Imports nothing for any other name. Raises Unknown.
    """
    known = loaded(KIND, CODECS)
    if name not in known:
        raise Unknown(KIND.noun, name, known)
    return known[name]


def codec_names() -> tuple[str, ...]:
    """The names for which `codec` returns one; the built-in ones and the owner's own come first."""
    known = loaded(KIND, CODECS)
    return tuple(sorted(known, key=lambda name: (name not in CODECS, ":" not in name, name)))
