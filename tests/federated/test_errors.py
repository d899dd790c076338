"""The table of exit codes explains the code of every error."""

from __future__ import annotations

from collections.abc import Iterator

from federated.errors import EXIT_CODES, EspalierError, StoreError
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
