"""Inputs bent while they stay well-formed, so that what lies behind the parsers is reached as well.

A tree of plain values is changed in one place, and encoded again; bytes that are no tree are left
to the fuzzer's own changes.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import msgpack

from benchmarks.fuzzing.samples import framed, frames
from federated.wire.tensors import ALIGNMENT, MAGIC, PREFIX

__all__ = ["bent"]

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 255, 2**31, 2**40, 2**62, 2**63, 2**64 - 1, -(2**63)),
    *(
        0.0,
        0.5,
        -1.0,
        1e300,
        1e-320,
        float("nan"),
        float("inf"),
        "",
        "a",
        "all",
        "../x",
        "\0",
        "\ud7ff",
        "a" * 300,
        "+",
        "#",
    ),
    *(b"", b"\xff" * 9, [], {}, [[]], [0] * 70, {"a": {"b": []}}, {"": 0}),
)
DEPTH = 24


def bent(data: bytes, shape: str, rng: random.Random) -> bytes | None:
    """A changed input of the same shape, `msgpack` or `blob`; None where it is none that can be
    read.
    """
    if shape == "blob":
        return _blob(data, rng)
    parts = list(frames(data))
    if data == framed(parts) and parts:
        return _frames(parts, rng)
    return _packed(data, rng)


def _frames(parts: list[bytes], rng: random.Random) -> bytes | None:
    at = rng.randrange(len(parts))
    match rng.randrange(5):
        case 0:
            parts.insert(rng.randrange(len(parts) + 1), parts[at])
        case 1:
            del parts[at]
        case 2:
            rng.shuffle(parts)
        case _:
            where, nul, payload = parts[at].partition(b"\0")
            addressed = nul and where.startswith(b"fl/")
            made = _packed(payload if addressed else parts[at], rng)
            if made is None:
                return None
            parts[at] = where + nul + made if addressed else made
    return framed([part[: 2**16 - 1] for part in parts])


def _packed(data: bytes, rng: random.Random) -> bytes | None:
    try:
        tree = msgpack.unpackb(data, raw=False, strict_map_key=False)
        made: bytes = msgpack.packb(_changed(tree, rng), use_bin_type=True)
    except Exception:  # whatever it is, the fuzzer bends its bytes
        return None
    return made


def _blob(data: bytes, rng: random.Random) -> bytes | None:
    try:
        length = PREFIX.unpack_from(data)[3]
        header = msgpack.unpackb(data[PREFIX.size : PREFIX.size + length], raw=False)
        values = data[-(-(PREFIX.size + length) // ALIGNMENT) * ALIGNMENT :]
        new: bytes = msgpack.packb(_changed(header, rng))
    except (Exception, struct.error):
        return None
    gap = -(PREFIX.size + len(new)) % ALIGNMENT
    return PREFIX.pack(MAGIC, 1, 0, len(new)) + new + bytes(gap) + values


def _changed(tree: Any, rng: random.Random, depth: int = 0) -> Any:
    """One place of a tree changed: another value, a part left out, doubled or put elsewhere."""
    if not isinstance(tree, dict | list) or not tree or rng.random() < 0.1 or depth > DEPTH:
        return _near(tree, rng)
    if isinstance(tree, list):
        at = rng.randrange(len(tree))
        if rng.random() < 0.2:
            return tree[:at] + tree[at + 1 :] if rng.random() < 0.5 else [*tree, tree[at]]
        return [*tree[:at], _changed(tree[at], rng, depth + 1), *tree[at + 1 :]]
    key = rng.choice(list(tree))
    match rng.randrange(10):
        case 0:
            return {k: v for k, v in tree.items() if k != key}
        case 1:
            return {**tree, rng.choice(("a", "x" * 200, "", key)): rng.choice(ODD)}
        case _:
            return {**tree, key: _changed(tree[key], rng, depth + 1)}


def _near(value: Any, rng: random.Random) -> Any:
    """Something else, of the same type half of the time."""
    if rng.random() < 0.5:
        match value:
            case bool():
                return not value
            case int():
                return max(-(2**63), min(2**64 - 1, value + rng.choice((-1, 1, 2, 63, 1024))))
            case float():
                return value * rng.choice((-1.0, 2.0, 1e-9, 1e30))
            case str():
                return (
                    value + rng.choice(("", "/", "@", "é", ".", "-1", "0"))
                    if rng.random() < 0.5
                    else value[: rng.randrange(len(value) + 1)]
                )
            case bytes():
                return value[: rng.randrange(len(value) + 1)] + bytes(rng.randrange(4))
    return rng.choice(ODD)
