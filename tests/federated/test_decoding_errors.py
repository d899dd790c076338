"""Errors of decoding say where, what was expected and what was found, without Python's types."""

from __future__ import annotations

import msgspec
import pytest

from federated.decoding_errors import describe_decoding_error


class Inner(msgspec.Struct):
    ms: float | None
    count: int = 0


class Outer(msgspec.Struct):
    rows: list[Inner]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[1]", "expected a table, found a list"),
        (b"{}", "expected a field 'rows', found none"),
        (b'{"rows": [{}]}', "rows[0]: expected a field 'ms', found none"),
        (b'{"rows": [{"ms": "1"}]}', "rows[0].ms: expected a number or nothing, found text"),
        (
            b'{"rows": [{"ms": 1, "count": null}]}',
            "rows[0].count: expected a whole number, found nothing",
        ),
        (b"hello", "found no valid JSON (byte 0)"),
        (b"", "found no valid JSON"),
        (b"\xff", "found no valid JSON (byte 0)"),
    ],
)
def test_a_decoding_error_names_the_place_and_both_types(content: bytes, said: str) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)) as caught:
        msgspec.json.decode(content, type=Outer)
    assert describe_decoding_error(caught.value) == said
