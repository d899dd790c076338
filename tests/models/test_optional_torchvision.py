"""torchvision is imported completely or without its compiled part, once, and only on demand."""

from __future__ import annotations

import subprocess
import sys

import pytest

from models.optional_torchvision import import_torchvision

pytest.importorskip("torch")


def test_its_parts_are_found_and_imported_once():
    assert import_torchvision("datasets").CIFAR10.__name__ == "CIFAR10"
    assert import_torchvision("models") is import_torchvision("models")


def test_unknown_part_is_named():
    with pytest.raises(ModuleNotFoundError, match=r"torchvision\.no_such_part"):
        import_torchvision("no_such_part")


def test_the_module_itself_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None; "
        "import models.optional_torchvision, federated.data.loading"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
