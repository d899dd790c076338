"""Every error that a person can cause or meet, as one tree.

EspalierError                      exit  meaning
├── UsageError                      2    a name or a flag that does not exist (click's own code) │
└── Unknown                     2    an unknown method, model, data set, ...: lists the known ├──
ConfigError                     3    a configuration or a data set that cannot be used │   └──
DataError                   3    data that is missing, empty, of one class or misshapen ├──
MissingExtra                    4    a command needs packages of an extra that is not installed ├──
LinkError                       5    no broker, a broker that refuses, or too small a packet limit
├── FleetError                      6    too few agents, or a run that no agent can serve ├──
StoreError                      7    a run directory that is missing, foreign, in use or damaged ├──
ExportError                     8    an exported graph that is wrong, foreign or corrupt └──
WireError                       -    a message that cannot be accepted; never ends a run
    ├── ProtocolMismatch            -    another protocol version
    ├── Malformed                   -    not msgpack, not a known kind, or fields of the wrong type
    └── Refused                     -    well-formed, but not acceptable: shape, dtype, name, values
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

__all__ = [
    "REASON",
    "ConfigError",
    "DataError",
    "EspalierError",
    "ExportError",
    "FleetError",
    "LinkError",
    "Malformed",
    "MissingExtra",
    "ProtocolMismatch",
    "Refused",
    "StoreError",
    "Unknown",
    "UsageError",
    "WireError",
    "brief",
]

# characters of a reason, and of any other text that one party sends and another stores or shows
REASON = 1000


def brief(text: str) -> str:
    """The text, cut to `REASON` characters. A cut text ends with dots."""
    return text if len(text) <= REASON else text[: REASON - 3] + "..."


class EspalierError(Exception):
    """Base of all; `exit_code` is what a command exits with."""

    exit_code = 1


class UsageError(EspalierError):
    exit_code = 2


class Unknown(UsageError):
    """A name that is not among the known ones. remedy: what else to do than to correct it."""

    def __init__(self, what: str, name: str, known: Iterable[str], remedy: str = "") -> None:
        self.name = name
        nearest = sorted(known, key=lambda k: (-SequenceMatcher(None, name, k).ratio(), k))
        hint = f"; {remedy}" if remedy else ""
        super().__init__(f"unknown {what} '{name}'; known: {', '.join(nearest)}{hint}")


class ConfigError(EspalierError):
    exit_code = 3


class DataError(ConfigError):
    pass


class MissingExtra(EspalierError):
    """A package of an extra is missing; the message holds the pip command."""

    exit_code = 4

    def __init__(self, command: str, extra: str, package: str) -> None:
        self.command, self.extra, self.package = command, extra, package
        super().__init__(
            f"{command} needs the package '{package}': pip install 'espalier[{extra}]'"
        )


class LinkError(EspalierError):
    exit_code = 5


class FleetError(EspalierError):
    exit_code = 6


class StoreError(EspalierError):
    exit_code = 7


class ExportError(EspalierError):
    exit_code = 8


class WireError(EspalierError):
    """A message that cannot be accepted. Whoever receives it logs the reason, answers the sender
    and goes on.

    The reason may quote the message, which may be large, so it is cut here.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(brief(reason))


class ProtocolMismatch(WireError):
    pass


class Malformed(WireError):
    pass


class Refused(WireError):
    pass
