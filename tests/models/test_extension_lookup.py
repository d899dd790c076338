"""Extensions are found by name, and an unknown name or failed import is an error with the
reason.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from models.extension_lookup import (
    MODELS,
    ExtensionPoint,
    import_member,
    known_names,
    locate_failure,
    lookup,
)
from tests.support.plugins import install

COLOUR = ExtensionPoint("colour", "toy.colours", str)
SHAPE = ExtensionPoint("shape", "toy.shapes")
KNOWN = {"red": "#f00", "green": "#0f0"}


def test_a_module_in_the_current_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_caller.py").write_text("def three():\n    return 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part])
    assert import_member("beside_the_caller:three")() == 3


def test_a_file_beside_the_package_is_the_users() -> None:
    code = compile("1 / 0", f"{MODELS}_of_a_user.py", "exec")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(code)
    assert locate_failure(caught.value).startswith("at models_of_a_user.py, line 1: Zero")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("math:absent", "module 'math' has no attribute 'absent'"),
        ("math:", "expected module:attribute"),
        ("no_such_module:f", "ModuleNotFoundError"),
        (":f", "expected module:attribute"),
        ("./absent.py:f", "the file absent.py does not exist; expected module:attribute"),
        ("no/absent:f", "the file no/absent.py does not exist"),
        ("math:pi", "of type float; expected a function"),
        ("broken_own_module:f", "failed at broken_own_module.py, line 1: ZeroDivisionError"),
    ],
)
def test_the_error_of_a_failed_import_gives_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    (tmp_path / "broken_own_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=f"'{name}' .*{why}"):
        import_member(name)
    with pytest.raises(ValueError, match=f"^shape '{name}' .*{why}"):
        lookup(SHAPE, name, {})


def test_the_error_for_the_path_of_a_file_names_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text("def f():\n    return 3\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"found a path; write net:f and start in the folder \."):
        import_member("./net.py:f")


def test_module_and_attribute_name_a_member_of_the_type_of_its_point() -> None:
    assert lookup(COLOUR, "string:digits", KNOWN) == "0123456789"
    with pytest.raises(ValueError, match=r"colour 'math:pi' is .*type float; expected a str"):
        lookup(COLOUR, "math:pi", KNOWN)


def test_an_installed_package_adds_a_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "toy-blue", {"toy.colours": {"blue": "toy_blue:NAVY"}})
    (tmp_path / "toy_blue.py").write_text("NAVY = '#008'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert lookup(COLOUR, "blue", KNOWN) == "#008"
    assert known_names(COLOUR, KNOWN) == ("red", "green", "blue")
    assert known_names(SHAPE, {}) == ()


def test_a_built_in_member_stays_when_a_package_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package's module does not exist, so it would raise if it were loaded."""
    install(tmp_path, "toy-red", {"toy.colours": {"red": "no_such_module:RED"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert lookup(COLOUR, "red", KNOWN) == "#f00"
    assert known_names(COLOUR, KNOWN) == ("red", "green")


def test_an_unknown_name_raises_the_known_ones_and_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "toy-broken", {"toy.colours": {"blue": "no_such_module:BLUE"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(LookupError) as caught:
        lookup(COLOUR, "bleu", KNOWN)
    assert caught.value.args == ("bleu", ("red", "green", "blue"))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no_such_module:BLUE", "ModuleNotFoundError"),
        ("math:absent", "module 'math' has no attribute 'absent'"),
        ("math:pi", "type float; expected a str"),
    ],
)
def test_a_package_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, why: str
) -> None:
    install(tmp_path, "toy-blue", {"toy.colours": {"blue": value}})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=f"colour 'blue' of the package toy-blue .*{why}"):
        lookup(COLOUR, "blue", KNOWN)


def test_a_name_that_two_packages_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("toy-one", "toy-two"):
        install(tmp_path, name, {"toy.colours": {"blue": "string:digits"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="colour 'blue' is in 2 packages: toy-one, toy-two"):
        lookup(COLOUR, "blue", KNOWN)
