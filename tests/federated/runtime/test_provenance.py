"""The provenance of a result."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from federated.runtime import provenance
from federated.runtime.provenance import commit, versions


def test_a_checkout_names_its_commit() -> None:
    assert re.fullmatch(r"([0-9a-f]{40}\+?)?", commit())  # empty in an installation


@pytest.mark.parametrize(
    ("changed", "mark"),
    [
        ("benchmarks/results/codec.json", ""),
        ("docs/benchmarks.md", ""),
        ("README.md", ""),
        ("benchmarks/codec.py", "+"),
        ("federated/README.md", "+"),
    ],
)
def test_only_a_change_of_code_marks_the_commit(tmp_path: Path, changed: str, mark: str) -> None:
    """Otherwise the results of one series would mark each other."""
    copy, file = tmp_path / "federated" / "runtime" / "provenance.py", tmp_path / changed
    for path in (copy, file):
        path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(provenance.__file__, copy)
    file.write_text("before")
    author = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "First"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    file.write_text("after")
    spec = spec_from_file_location("copied_provenance", copy)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert re.fullmatch(r"[0-9a-f]{40}" + re.escape(mark), module.commit())


def test_a_package_that_is_missing_has_an_empty_version() -> None:
    assert versions(["numpy", "no-such-package"]) == {
        "numpy": version("numpy"),
        "no-such-package": "",
    }
