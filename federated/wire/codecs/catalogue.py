"""The codecs by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from federated.errors import Unknown
from federated.runtime import plugins
from federated.wire.codecs.codec import Codec
from federated.wire.codecs.fp16 import FP16
from federated.wire.codecs.raw import RAW
from models.extensions import Kind

__all__ = ["CODECS", "codec", "installed"]

KIND = Kind("codec", "espalier.codecs", Codec)

CODECS: dict[str, Codec] = {
    "fp16": FP16,
    "raw": RAW,
}


@cache
def installed() -> Mapping[str, Codec]:
    """Every codec of this machine by name: the built-in ones, and those of installed packages
    (`espalier.codecs`). All are loaded the first time, whatever any message names.
    """
    return plugins.installed(KIND, CODECS)


def codec(name: str) -> Codec:
    """The codec of a name, which may come from a message: it is looked up among the installed ones.
    Raises Unknown, nearest names first.
    """
    known = installed()
    if name not in known:
        raise Unknown(KIND.noun, name, known)
    return known[name]
