"""Mutate the fuzzer's inputs so that they stay well-formed, to reach the code behind the parsers.

The input is decoded, one value of its tree changes, and the tree is encoded again. Malformed inputs
come from the fuzzer's own mutations of bytes.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import msgpack

from benchmarks.fuzzing.samples import join_frames, split_frames
from federated.wire.tensors import ALIGNMENT, MAGIC, PREFIX

__all__ = ["mutate"]

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


def mutate(data: bytes, shape: str, rng: random.Random) -> bytes | None:
    """Return a changed input of the same shape, `msgpack` or `blob`; None if it cannot be read."""
    if shape == "blob":
        return _mutate_blob(data, rng)
    parts = list(split_frames(data))
    if data == join_frames(parts) and parts:
        return _mutate_frames(parts, rng)
    return _mutate_msgpack(data, rng)


def _mutate_frames(parts: list[bytes], rng: random.Random) -> bytes | None:
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
            made = _mutate_msgpack(payload if addressed else parts[at], rng)
            if made is None:
                return None
            parts[at] = where + nul + made if addressed else made
    return join_frames([part[: 2**16 - 1] for part in parts])


def _mutate_msgpack(data: bytes, rng: random.Random) -> bytes | None:
    try:
        tree = msgpack.unpackb(data, raw=False, strict_map_key=False)
        made: bytes = msgpack.packb(_change(tree, rng), use_bin_type=True)
    except Exception:  # the fuzzer mutates the bytes instead
        return None
    return made


def _mutate_blob(data: bytes, rng: random.Random) -> bytes | None:
    try:
        length = PREFIX.unpack_from(data)[3]
        header = msgpack.unpackb(data[PREFIX.size : PREFIX.size + length], raw=False)
        values = data[-(-(PREFIX.size + length) // ALIGNMENT) * ALIGNMENT :]
        new: bytes = msgpack.packb(_change(header, rng))
    except (Exception, struct.error):
        return None
    gap = -(PREFIX.size + len(new)) % ALIGNMENT
    return PREFIX.pack(MAGIC, 1, 0, len(new)) + new + bytes(gap) + values


def _change(tree: Any, rng: random.Random, depth: int = 0) -> Any:
    """Change one place of a tree: replace, drop, double or move a value."""
    if not isinstance(tree, dict | list) or not tree or rng.random() < 0.1 or depth > DEPTH:
        return _vary(tree, rng)
    if isinstance(tree, list):
        at = rng.randrange(len(tree))
        if rng.random() < 0.2:
            return tree[:at] + tree[at + 1 :] if rng.random() < 0.5 else [*tree, tree[at]]
        return [*tree[:at], _change(tree[at], rng, depth + 1), *tree[at + 1 :]]
    key = rng.choice(list(tree))
    match rng.randrange(10):
        case 0:
            return {k: v for k, v in tree.items() if k != key}
        case 1:
            return {**tree, rng.choice(("a", "x" * 200, "", key)): rng.choice(ODD)}
        case _:
            return {**tree, key: _change(tree[key], rng, depth + 1)}


def _vary(value: Any, rng: random.Random) -> Any:
    """Return another value, of the same type half of the time."""
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
