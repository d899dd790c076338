"""Extensions are found with the project's errors."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from federated.errors import ConfigError, LinkError, MissingExtra, Unknown
from federated.runtime.extension_errors import check_declares, find, report_failure
from federated.wire.link import Link
from models.extension_lookup import ExtensionPoint
from tests.support.plugins import install

COLOUR = ExtensionPoint("colour", "toy.colours", str)
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
    with pytest.raises(ConfigError, match="no module 'no_such_module' in the current folder"):
        find(COLOUR, "no_such_module:RED", KNOWN)


def test_a_failure_of_a_foreign_function_names_it_and_the_projects_own_errors_pass() -> None:
    with (
        pytest.raises(
            ConfigError,
            match=r"colour 'mine' failed at test_extension_errors.py, line \d+: ZeroDivisionError",
        ),
        failing(),
    ):
        _ = 1 / 0
    for own in (LinkError("gone"), MissingExtra("it", "train", "torch")):
        with pytest.raises(type(own)) as caught, failing():
            raise own
        assert caught.value is own


def failing() -> AbstractContextManager[None]:
    return report_failure("colour", "mine")


def test_a_value_must_have_each_member_of_its_protocol() -> None:
    members = ["max_payload", "publish", "backlog"]
    partial = type("Partial", (), dict.fromkeys(members))()
    with pytest.raises(ConfigError, match="a Partial without block, close, flush, ") as caught:
        check_declares("link scheme", "mine", partial, Link)
    assert not any(f" {member}," in str(caught.value) for member in members)
