"""Extensions are found with the project's errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from federated.errors import ConfigError, Unknown
from federated.runtime.plugins import find
from models.extensions import Kind
from tests.support.plugins import install

COLOUR = Kind("colour", "toy.colours", str)
KNOWN = {"red": "#f00", "green": "#0f0"}


def test_an_extension_is_found_by_each_kind_of_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "toy-blue", {"toy.colours": {"blue": "string:hexdigits"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find(COLOUR, "green", KNOWN) == "#0f0"
    assert find(COLOUR, "string:digits", KNOWN) == "0123456789"
    assert find(COLOUR, "blue", KNOWN) == "0123456789abcdefABCDEF"


def test_an_unknown_name_suggests_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "toy-blue", {"toy.colours": {"blue": "string:hexdigits"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Unknown, match=r"^unknown colour 'bleu'; did you mean blue"):
        find(COLOUR, "bleu", KNOWN)


def test_an_import_failure_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="colour 'no_such_module:RED' cannot be imported"):
        find(COLOUR, "no_such_module:RED", KNOWN)
