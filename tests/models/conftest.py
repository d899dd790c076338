"""Networks of user functions within a test."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from models.named_network import network
from models.submodel import Network
from tests.support.user_networks import Named

numbers = itertools.count()


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Named:
    """Make the network of a function under a unique name, since families are cached by name."""
    module = ModuleType(f"own_{next(numbers)}")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def make(
        function: Callable[..., object],
        inputs: tuple[int, ...] = (1, 8, 8),
        outputs: int = 10,
        target: str = "class",
    ) -> Network:
        name = f"f{next(numbers)}"
        setattr(module, name, function)
        return network(f"{module.__name__}:{name}", inputs, outputs, target=target)

    return make
