"""Functions are found where a command is called, and what cannot be is said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from models.function import imported


def test_a_module_beside_the_caller_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_caller.py").write_text("def three():\n    return 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part])
    assert imported("beside_the_caller:three")() == 3


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("math:absent", "AttributeError"),
        ("no_such_module:f", "ModuleNotFoundError"),
        (":f", "ValueError"),
        ("math:pi", "is a float; expected a function"),
        ("broken_own_module:f", "ZeroDivisionError"),
    ],
)
def test_what_cannot_be_imported_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    (tmp_path / "broken_own_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=f"'{name}' .*{why}"):
        imported(name)
