"""Parsing a request takes little more memory than its result."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from edge_agent.infer import requests_and_replies
from edge_agent.infer.requests_and_replies import parse_inputs
from federated.errors import DataError, ExportError

PICTURE: Any = SimpleNamespace(inputs=(3, 32, 32), dtype=np.dtype(np.uint8))
ROW: Any = SimpleNamespace(inputs=(3,), dtype=np.dtype(np.float32))


def encode(values: object) -> bytes:
    return msgspec.json.encode({"inputs": values})


def test_a_large_request_is_parsed_one_example_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_and_replies, "MAX_AT_ONCE", 2)
    x = np.arange(2 * 3 * 32 * 32).reshape(2, 3, 32, 32) % 256
    found = parse_inputs(encode(x.tolist()), "a request", PICTURE)
    assert found.dtype == np.uint8
    assert found.tolist() == x.tolist()
    spaced = b'{ "inputs" : [ [1, 2,3 ] ,\n[4,5 , 6.5]\t] }'
    assert parse_inputs(spaced, "a request", ROW).tolist() == [[1, 2, 3], [4, 5, 6.5]]


@pytest.mark.parametrize(
    "text",
    [
        b"[[1,2,3],4]",
        b"[4,[1,2,3]]",
        b"[[1,2,3],4,[1,2,3]]",
        b'{"a":[[1,2,3],[1,2,3]]}',
        b"[1,2,3,4]",
        b"[[1,2,3],[1,2]]",
        b'[[1,2,3],["]",2,3]]',
        b'[[1,2,3],"[1,2,3]"]',
        b"[[1,2,3],[[1],[2],[3]]]",
    ],
)
def test_a_large_request_with_other_values_is_refused(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_and_replies, "MAX_AT_ONCE", 2)
    with pytest.raises(DataError, match="expected"):
        parse_inputs(b'{"inputs":' + text + b"}", "a request", ROW)


@pytest.mark.parametrize(
    ("body", "session"),
    [
        (b'{"inputs":[' + b"[]," * 2_700_000 + b"[]]}", PICTURE),
        (b'{"inputs":[' + b"[]," * 30_000 + b"[]]}", PICTURE),
        (b'{"inputs":[' + b"1.5," * 2_000_000 + b"1.5]}", ROW),
        (b'{"inputs":[' + b"1," * 700_000 + b"1]}", PICTURE),
        (b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}", PICTURE),
    ],
    ids=["lists", "fewer lists", "fractions", "numbers", "deep"],
)
def test_refusing_a_large_request_takes_little_memory(body: bytes, session: Any) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            parse_inputs(body, "a request", session)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_without_a_release_nothing_is_parsed() -> None:
    with pytest.raises(ExportError, match="no release"):
        parse_inputs(b"{", "a request", None)
