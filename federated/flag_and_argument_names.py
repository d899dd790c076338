"""Names of the options that a command takes as a flag and the Python API as an argument: an error
spells them as its reader does (`EspalierError.naming`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = [
    "BROKER",
    "DATA",
    "INPUTS",
    "NAME",
    "PASSWORDS",
    "PORT",
    "RESUME",
    "RUNS",
    "SHARD",
    "TLS",
    "Option",
    "Spell",
]


@dataclass(frozen=True)
class Option:
    """An option of a command and of the Python API.

    flag: for the command line.
    argument: for Python.
    """

    flag: str
    argument: str


Spell = Callable[[Option], str]
"""A function that returns the flag or the argument of an option."""

BROKER = Option("--broker ADDRESS", "broker=ADDRESS")
DATA = Option("--data NAME", "data=NAME")
INPUTS = Option("--inputs FILE.npz", "inputs=(x, y)")
NAME = Option("--name NAME", "name=NAME")
PASSWORDS = Option("--passwords FILE", 'broker={"passwords": FILE}')
PORT = Option("--port PORT", 'broker={"port": PORT}')
RESUME = Option("--resume", "resume=True")
RUNS = Option("--runs DIR", "runs=DIR")
SHARD = Option("--shard", "shard")
TLS = Option("--tls", 'broker={"tls": True}')
