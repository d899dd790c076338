"""The provenance of a result."""

from __future__ import annotations

import re
from importlib.metadata import version

from federated.runtime.provenance import commit, versions


def test_a_checkout_names_its_commit() -> None:
    assert re.fullmatch(r"([0-9a-f]{40}\+?)?", commit())  # empty in an installation


def test_a_package_that_is_missing_has_an_empty_version() -> None:
    assert versions(["numpy", "no-such-package"]) == {
        "numpy": version("numpy"),
        "no-such-package": "",
    }
