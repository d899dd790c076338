"""The table of exit codes explains the code of every error."""

from __future__ import annotations

from collections.abc import Iterator

from federated.errors import EXIT_CODES, EspalierError


def list_errors(kind: type[EspalierError]) -> Iterator[type[EspalierError]]:
    yield kind
    for derived in kind.__subclasses__():
        yield from list_errors(derived)


def test_every_exit_code_is_explained() -> None:
    codes = {kind.exit_code for kind in list_errors(EspalierError)}
    assert codes | {0, 130} == set(EXIT_CODES)
