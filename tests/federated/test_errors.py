"""Errors, and the table of exit codes, which explains the code of every error."""

from __future__ import annotations

from collections.abc import Iterator

from federated.errors import EXIT_CODES, EspalierError, StoreError, Unknown
from federated.flag_and_argument_names import RESUME


def list_errors(kind: type[EspalierError]) -> Iterator[type[EspalierError]]:
    yield kind
    for derived in kind.__subclasses__():
        yield from list_errors(derived)


def test_every_exit_code_is_explained() -> None:
    codes = {kind.exit_code for kind in list_errors(EspalierError)}
    assert codes | {0, 130} == set(EXIT_CODES)


def test_an_error_names_an_option_by_its_argument_and_on_the_command_line_by_its_flag() -> None:
    error = StoreError.naming(lambda spell: f"run 'r' exists: resume it ({spell(RESUME)})")
    assert str(error) == "run 'r' exists: resume it (resume=True)"
    assert error.on_command_line == "run 'r' exists: resume it (--resume)"
    assert StoreError("other").on_command_line == ""


def test_an_unknown_name_lists_a_limited_number_of_known_ones() -> None:
    assert str(Unknown("claim", "x", ())) == "unknown claim 'x'; none is known"
    assert str(Unknown("agent", "x", ["b", "a"])) == "unknown agent 'x'; known: a, b"
    many = str(Unknown("agent", "x", [f"pi-{index:05d}" for index in range(10_000)]))
    assert many.endswith("pi-00099 and 9900 more")
