"""Find a codec by name: a built-in one, one of an installed package, or `module:attribute`."""

from __future__ import annotations

from federated.errors import Unknown
from federated.runtime.extension_errors import find
from federated.wire.codecs.codec import Codec, is_installed
from federated.wire.codecs.fp16 import FP16
from federated.wire.codecs.int8 import INT8
from federated.wire.codecs.raw import RAW
from federated.wire.codecs.top10 import TOP10
from federated.wire.codecs.zstd import add_zstd
from models.extension_lookup import ExtensionPoint, load_all

__all__ = ["CODECS", "codec_names", "find_codec", "find_loaded_codec"]

POINT = ExtensionPoint("codec", "espalier.codecs", Codec)

CODECS: dict[str, Codec] = {
    "fp16": FP16,
    "fp16-zstd": add_zstd(FP16),
    "int8": INT8,
    "int8-zstd": add_zstd(INT8),
    "raw": RAW,
    "top10-zstd": TOP10,
}


def find_codec(name: str) -> Codec:
    """Return the codec that the owner of this machine named: a built-in one, one of an installed
    package (`espalier.codecs`), or `module:attribute`. Raises Unknown with the nearest name;
    ConfigError if it cannot be imported; MissingExtra if its compression is not installed.
    """
    found = find(POINT, name, CODECS)
    if found.compression:
        found.compression.load()
    return found


def find_loaded_codec(name: str) -> Codec:
    """Return the codec that a message names: a built-in one, one of an installed package, or one
    that `find_codec` returned before. Other names import nothing and raise Unknown.
    """
    known = load_all(POINT, CODECS)
    if name not in known:
        raise Unknown(POINT.noun, name, known)
    return known[name]


def codec_names() -> tuple[str, ...]:
    """Return the names of the codecs that `find_loaded_codec` knows and this machine can use, the
    built-in and the owner's own first.
    """
    known = {name for name, codec in load_all(POINT, CODECS).items() if is_installed(codec)}
    return tuple(sorted(known, key=lambda name: (name not in CODECS, ":" not in name, name)))
