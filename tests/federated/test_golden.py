"""The golden numbers of the papers and their authors' code, through the real engine, methods and
layers.

The checks live in `tests/federated/golden`, a module per paper, each a function `check_NAME(toy)`
for the file NAME.json. The files lie beside the checkout; where they are absent these tests skip.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest

from tests.support.golden import GOLDEN, register_toy

pytestmark = pytest.mark.skipif(
    not GOLDEN.is_dir(), reason="the golden files are not beside this checkout"
)

MODULES = [
    importlib.import_module(f"tests.federated.golden.{m.name}")
    for m in pkgutil.iter_modules([str(Path(__file__).parent / "golden")])
]
CHECKS = {
    name.removeprefix("check_"): check
    for module in MODULES
    for name, check in vars(module).items()
    if name.startswith("check_")
}


@pytest.fixture
def toy(monkeypatch):
    """Yield toy(shapes of a submodel, blocks per section) -> the whole as a submodel."""
    return register_toy(monkeypatch)


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_golden(name, toy):
    CHECKS[name](toy)


def test_every_golden_file_is_checked():
    assert CHECKS.keys() == {path.stem for path in GOLDEN.glob("*.json")}
